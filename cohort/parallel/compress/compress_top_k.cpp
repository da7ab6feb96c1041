// topk:F: the fraction F of the elements that is largest by magnitude, as index and value.
//
// Steps, n elements, k = F n rounded, at least 1: 1. x = gradient + residual; 2. the k elements of largest |x| (of equal ones the first)
// are
//   sent as a 4-byte index and a float, in order of index; x there becomes 0, the rest is the residual; 3. all ranks gather all lists and
//   add them in rank order into zeros.
// Cost for a rank: 1 exchange, 8 k (p-1) bytes sent: more than without compression where F p > 1. Nothing is rounded: an element arrives
//   as it is, or later.
// Source: Aji and Heafield 2017 ("Sparse Communication for Distributed Gradient Descent"); Stich et al. 2018 ("Sparsified SGD with Memory")
//   for the residual.
// Differences: k is exact, so all ranks send equally much and no lengths are exchanged. The k-th magnitude is found among the elements
// above
//   a threshold taken from a sample of 4096 (about 1.5 k of them); where the sample misled, among all. No momentum correction (Lin et al.
//   2018).

#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/random.h"
#include "cohort/parallel/common/vector_loops.h"
#include "cohort/parallel/compress/compressors.h"

namespace cohort {
namespace {

COHORT_VECTOR_LOOP void clear_non_finite(float* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[i] = float_of(select(magnitude_bits(x[i]) < kInfinityBits, bits_of(x[i]), 0));
}

/// Orders by magnitude, then by index: the first of equal elements is the largest.
uint64_t key_of(float x, uint32_t index) { return uint64_t{magnitude_bits(x)} << 32 | (0xffffffffu - index); }

class TopK : public Compressor {
 public:
  TopK(int64_t num_elements, double fraction) : feedback_(num_elements) {
    if (num_elements > int64_t{std::numeric_limits<uint32_t>::max()})
      fail(ErrorCode::kBadInput, "topk: a buffer of ", num_elements, " elements; at most 2^32 - 1: use smaller buckets");
    if (num_elements > 0) k_ = std::clamp<int64_t>(std::llround(fraction * static_cast<double>(num_elements)), 1, num_elements);
  }

  void all_reduce_sum(Group& group, at::Tensor flat, const std::string& what) override {
    float* const gradients = feedback_.gradients(flat, what);
    const int64_t count = feedback_.num_elements();
    if (count == 0) return;
    if (!mine_.defined()) {
      mine_ = at::empty({2, k_}, at::kInt);
      theirs_ = group.size() == 1 ? mine_ : at::empty({group.size(), 2, k_}, at::kInt);
    }
    add_to(feedback_.data(), gradients, count);
    take_largest();
    if (group.size() > 1) group.all_gather(theirs_, mine_, what);
    std::memset(gradients, 0, static_cast<size_t>(count) * sizeof(float));
    const int32_t* list = theirs_.data_ptr<int32_t>();
    for (int rank = 0; rank < group.size(); ++rank, list += 2 * k_)
      for (int64_t i = 0; i < k_; ++i) gradients[static_cast<uint32_t>(list[i])] += std::bit_cast<float>(list[k_ + i]);
    sent_bytes_ = cost(group.size()).sent_bytes;
  }

  int64_t sent_bytes() const override { return sent_bytes_; }
  ExchangeCost cost(int num_ranks) const override {
    if (num_ranks == 1 || k_ == 0) return {};
    return {(num_ranks - 1) * k_ * 8, 1};
  }
  std::vector<std::pair<std::string, at::Tensor>> state() override { return {feedback_.state()}; }

 private:
  /// A magnitude that slightly more than k elements are likely to reach.
  uint32_t sampled_threshold() {
    constexpr int64_t kSample = 4096;
    const int64_t count = feedback_.num_elements();
    const double expected = static_cast<double>(k_) / static_cast<double>(count) * kSample;
    const int64_t place = static_cast<int64_t>(1.25 * expected + 3 * std::sqrt(expected) + 4);
    if (count <= kSample || place >= kSample) return 0;
    std::vector<uint32_t> sample(kSample);
    for (int64_t i = 0; i < kSample; ++i) sample[i] = magnitude_bits(feedback_.data()[mix64(i) % static_cast<uint64_t>(count)]);
    std::nth_element(sample.begin(), sample.begin() + place, sample.end(), std::greater<>());
    return sample[place];
  }

  /// Stores the ascending indices of elements of at least `threshold` in candidates_. Returns their number.
  size_t collect(uint32_t threshold) {
    constexpr size_t kTile = 4096;
    const float* const x = feedback_.data();
    const size_t count = static_cast<size_t>(feedback_.num_elements());
    size_t found = 0;
    for (size_t begin = 0; begin < count; begin += kTile) {
      if (candidates_.size() < found + kTile) candidates_.resize(2 * found + kTile);
      uint32_t* const out = candidates_.data();
      for (size_t i = begin; i < std::min(begin + kTile, count); ++i) {  // Branch-free: unpredictable.
        out[found] = static_cast<uint32_t>(i);
        found += magnitude_bits(x[i]) >= threshold;
      }
    }
    return found;
  }

  /// Moves the k largest elements of the residual to mine_.
  void take_largest() {
    float* const x = feedback_.data();
    size_t found = collect(sampled_threshold());
    if (found < static_cast<size_t>(k_)) found = collect(0);
    keys_.resize(found);
    for (size_t i = 0; i < found; ++i) keys_[i] = key_of(x[candidates_[i]], candidates_[i]);
    std::nth_element(keys_.begin(), keys_.begin() + (k_ - 1), keys_.end(), std::greater<>());
    const uint64_t last = keys_[static_cast<size_t>(k_ - 1)];
    int32_t* const list = mine_.data_ptr<int32_t>();
    int64_t taken = 0;
    bool non_finite = false;
    for (size_t i = 0; i < found; ++i) {
      const uint32_t index = candidates_[i];
      if (key_of(x[index], index) < last) continue;
      non_finite |= magnitude_bits(x[index]) >= kInfinityBits;
      list[taken] = static_cast<int32_t>(index);
      list[k_ + taken++] = std::bit_cast<int32_t>(x[index]);
      x[index] = 0;
    }
    if (non_finite) clear_non_finite(x, feedback_.num_elements());
  }

  ErrorFeedback feedback_;
  int64_t k_ = 0;
  at::Tensor mine_, theirs_;          // k indices, then the bits of k values.
  std::vector<uint32_t> candidates_;  // Scratch, like keys_.
  std::vector<uint64_t> keys_;
  int64_t sent_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Compressor> make_top_k(int64_t num_elements, double fraction) { return std::make_unique<TopK>(num_elements, fraction); }

}  // namespace cohort
