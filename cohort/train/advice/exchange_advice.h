#pragma once
// Measures what compressing gradients would cost and bring here: what plan/cost/compression_advice.h reasons from.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/comm/group.h"
#include "cohort/parallel/compress/compressor.h"
#include "cohort/plan/cost/compression_advice.h"

namespace cohort {

/// Gradients that are exchanged together.
struct GradientBucket {
  CompressedBuffer buffer;
  int64_t num_elements = 0;
};
/// The parameters of a model, by shape and in order, one after the other in buckets of about `bucket_bytes`.
COHORT_PROGRAM_API std::vector<GradientBucket> gradient_buckets(const std::vector<std::vector<int64_t>>& shapes,
                                                                int64_t bucket_bytes = 8 << 20);

/// Measures each of none, fp16, bf16, int8, topk:0.01 and powersgd:4, and `in_use`, on made-up gradients, without a network: buckets up to
/// about 32 MiB, scaled to all of them.
std::vector<CompressionCost> measure_compression(const std::vector<GradientBucket>& buckets, int num_ranks,
                                                 const std::string& in_use = "none");

/// All of it for the group at hand, whose link is measured here where it is not given. Collective; rank 0's step and the slowest rank's
/// compression count, and every rank gets the same advice.
COHORT_PROGRAM_API AdviceRecord measure_advice(Group& group, StepMeasurement step, const std::vector<GradientBucket>& buckets,
                                               const std::optional<LinkEstimate>& measured_link = std::nullopt);

}  // namespace cohort
