// Counter-based dropout.
//
// Steps: (1) a 64-bit key for each sample, random_bits(seed, layer id, step, global position); (2) draw j of a sample is SplitMix64's
// output j of the stream that starts at its key; a draw's two 32-bit halves decide elements 2j and 2j+1; (3) an element is kept when its
// half is at least probability * 2^32, so the probability is met to 2^-32; (4) output = input * factor, whose backward needs the factors
// alone.
// Cost: one 64-bit mix for two elements; the loop has no branch and no carried state. Where we differ from at::dropout: there the
// mask is the next stretch of a generator's stream, so it changes with the split of the batch and with earlier draws.

#include "cohort/models/layers/dropout.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>

#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/base/random.h"

namespace cohort {
namespace {

/// Fills factors[0, count) from the stream of one sample.
void fill_factors(uint64_t key, uint64_t threshold, float kept, float* factors, int64_t count) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ULL;  // SplitMix64's increment; mix64 adds it once more, which does no harm
  const int64_t num_pairs = count / 2;
  for (int64_t j = 0; j < num_pairs; ++j) {
    const uint64_t bits = mix64(key + static_cast<uint64_t>(j) * kGolden);
    factors[2 * j] = (bits & 0xffffffffULL) >= threshold ? kept : 0.0F;
    factors[2 * j + 1] = (bits >> 32) >= threshold ? kept : 0.0F;
  }
  if (count % 2 != 0) {
    const uint64_t bits = mix64(key + static_cast<uint64_t>(num_pairs) * kGolden);
    factors[count - 1] = (bits & 0xffffffffULL) >= threshold ? kept : 0.0F;
  }
}

}  // namespace

DropoutImpl::DropoutImpl(double probability, int64_t layer_id)
    : torch::nn::Module("Dropout"), probability_(probability), layer_id_(layer_id) {
  if (!(probability >= 0.0 && probability < 1.0))
    fail(ErrorCode::kBadInput, "dropout: the probability must lie in [0, 1), but it is ", probability);
}

at::Tensor DropoutImpl::forward(const at::Tensor& input) {
  if (probability_ == 0.0 || !is_training()) return input;
  const StepContext* context = current_step_context();
  if (context == nullptr) return at::dropout(input, probability_, /*train=*/true);
  return input * dropout_factors(input, probability_, layer_id_, *context).to(input.options());
}

at::Tensor dropout_factors(const at::Tensor& like, double probability, int64_t layer_id, const StepContext& context) {
  at::Tensor factors = at::empty(like.sizes(), at::TensorOptions().dtype(at::kFloat));
  if (factors.numel() == 0) return factors;
  const int64_t num_samples = like.dim() == 0 ? 1 : like.size(0);
  const int64_t elements = factors.numel() / num_samples;
  const auto threshold = static_cast<uint64_t>(std::llround(probability * 0x1.0p32));
  const auto kept = static_cast<float>(1.0 / (1.0 - probability));
  float* out = factors.data_ptr<float>();
  for (int64_t i = 0; i < num_samples; ++i) {
    const uint64_t key = random_bits(context.seed, layer_id, context.step, context.first_sample + i);
    fill_factors(key, threshold, kept, out + i * elements, elements);
  }
  return factors;
}

}  // namespace cohort
