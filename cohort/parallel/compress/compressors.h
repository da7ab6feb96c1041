#pragma once
// Shared by compressors: error feedback, the sum of codes, and the factories. Internal to this folder.

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/parallel/compress/compressor.h"

namespace cohort {

// Error feedback: what a compressor omits in one step it adds to the next.
//
// Definitions: g the gradient of this rank, e its residual (zero at first), c() the lossy code. A step sends c(x) of x = g + e and keeps
// e = x - c(x). So after any number of steps, whatever c() is:
//   sum of what was applied + sum over ranks of e = sum of all gradients of all ranks      (but for the rounding of float additions)
// and the mean of what was applied over T steps differs from the mean gradient by |e| / T.
// Source: Seide et al. 2014 (1-bit SGD, section 3.2); Karimireddy et al. 2019 ("Error Feedback Fixes SignSGD", algorithm 2).
//
// Residuals have the units of gradients without a loss scale, which may change. Infinite and NaN gradients are passed on, so that every
// rank sees them and skips the step, with residuals as before it (CompressorBackup). Where they are not restored the residual restarts from
// zero there, because an infinite one would persist.

/// The residual of one buffer on one rank.
class ErrorFeedback {
 public:
  explicit ErrorFeedback(int64_t num_elements) : residual_(at::zeros({num_elements}, at::kFloat)) {}

  int64_t num_elements() const { return residual_.numel(); }
  float* data() { return residual_.data_ptr<float>(); }
  const at::Tensor& residual() const { return residual_; }
  /// Its entry in a checkpoint.
  std::pair<std::string, at::Tensor> state() { return {"residual", residual_}; }

  /// The memory of `flat` where it fits this residual, else Error(kBadInput) with `what`.
  float* gradients(const at::Tensor& flat, const std::string& what) const {
    if (flat.dim() != 1 || !flat.is_contiguous() || flat.scalar_type() != at::kFloat || flat.numel() != num_elements())
      fail(ErrorCode::kBadInput, "compressed exchange of ", what, ": got ", flat.sizes(), " of ", flat.scalar_type(), ", expected ",
           num_elements(), " contiguous floats; exchange buffers of other types without compression");
    return flat.data_ptr<float>();
  }

 private:
  at::Tensor residual_;
};

// Sum over ranks of gradients in a code of fewer bytes (fp16, bf16, int8).
//
// Steps, p ranks, n elements, b bytes of code each:
//   gather (p <= 2, or code up to kSmallBytes): 1. every rank encodes all n elements; 2. gathers the p codes; 3. decodes and adds them.
//   slices (else): 1. every rank encodes p slices; 2. all-to-all: rank s receives slice s of every rank; 3. decodes and adds them; 4.
//   encodes the sum; 5. all-gather of the coded sums; 6. decodes them.
// Additions are in float and in rank order, and a decoded value is exact, so all ranks hold the same bits.
//
// Cost for a rank: gather 1 exchange, (p-1) n b bytes sent; slices 2 exchanges, 2 (p-1)/p n b bytes, the least that any all-reduce sends.
// Memory: a residual of n floats, (p+1) n b bytes of codes (gather) or 3 n b (slices). Passes over memory: one to encode, one for each
// code that is added.
//
// Source: the two-way compression of Tang et al. 2019 ("DoubleSqueeze", algorithm 1) with the slices' owners as servers.
// Differences: the owner adds its own error of step 1 to the sum before it encodes that, so one residual serves both codes.

/// A compressor that sums such codes with error feedback.
class CodedSum : public Compressor {
 public:
  static constexpr int64_t kSmallBytes = 32 * 1024;

  CodedSum(std::unique_ptr<Codec> codec, int64_t num_elements) : codec_(std::move(codec)), feedback_(num_elements) {}
  void all_reduce_sum(Group& group, at::Tensor flat, const std::string& what) override;
  int64_t sent_bytes() const override { return sent_bytes_; }
  ExchangeCost cost(int num_ranks) const override;
  std::vector<std::pair<std::string, at::Tensor>> state() override { return {feedback_.state()}; }

 private:
  bool gathers(int num_ranks) const;
  int64_t slice_elements(int num_ranks) const;
  void sum_gathered(Group& group, float* gradients, const std::string& what);
  void sum_slices(Group& group, float* gradients, const std::string& what);

  std::unique_ptr<Codec> codec_;
  ErrorFeedback feedback_;
  at::Tensor mine_, theirs_;  // Bytes; reused, since fresh pages cost more than the code.
  int64_t sent_bytes_ = 0;
};

// For the table in compressor.cpp.

std::unique_ptr<Codec> make_fp16_codec();
std::unique_ptr<Codec> make_bf16_codec();
std::unique_ptr<Codec> make_int8_codec();
/// 0 < fraction <= 1.
std::unique_ptr<Compressor> make_top_k(int64_t num_elements, double fraction);
/// rank >= 1. Parts of the buffer do not overlap; the rest of it is exchanged uncompressed.
std::unique_ptr<Compressor> make_power_sgd(const CompressedBuffer& buffer, int64_t num_elements, int64_t rank, uint64_t seed);

}  // namespace cohort
