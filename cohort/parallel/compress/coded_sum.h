#pragma once
// Sum over ranks of gradients that travel in a code of fewer bytes (fp16, bf16, int8): what all such codes share.
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

#include <memory>

#include "cohort/parallel/compress/codec.h"
#include "cohort/parallel/compress/compressor.h"
#include "cohort/parallel/compress/error_feedback.h"

namespace cohort {

/// A compressor of such a code with error feedback.
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
  at::Tensor mine_, theirs_;  // Bytes; kept from step to step, for fresh pages cost more than the code.
  int64_t sent_bytes_ = 0;
};

}  // namespace cohort
