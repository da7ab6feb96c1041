#pragma once
// Whether compressing gradients would pay: the step predicted for each compression from measured seconds and bytes.
//
// Model, in seconds: now the step takes S, of which the exchange shows for E (the rest of it hides behind backward). t(c) is the time of
// the link for the bytes and exchanges of compression c, k(c) the time to compress and decompress on this machine. What hides now, h =
// max(0, t(none) - E), hides then too; what shows beyond the link's time, w = max(0, E - t(none)), is waiting for slower ranks and stays:
//   step(c) = S - E + w + k(c) + max(0, t(c) - h)          step(none) = S
// Compression takes the processor that computes, so k(c) is added in full.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/comm/rendezvous/link.h"
#include "cohort/parallel/compress/compressor.h"
#include "cohort/record/end_records.h"

namespace cohort {

struct StepMeasurement {
  double step_seconds = 0;     ///< Without compression.
  double exposed_seconds = 0;  ///< Of it: time that the step waited for the exchange of gradients.
};

/// What one compression would cost a rank in each step.
struct CompressionCost {
  std::string compress;         ///< As for make_compressor().
  double compress_seconds = 0;  ///< To compress and decompress all gradients once.
  ExchangeCost exchange;        ///< Of all buckets.
};

/// `costs` begins with "none". Arithmetic only.
AdviceRecord advise(const StepMeasurement& step, const LinkEstimate& link, const std::vector<CompressionCost>& costs);

/// Gradients that are exchanged together.
struct GradientBucket {
  CompressedBuffer buffer;
  int64_t num_elements = 0;
};
/// The parameters of a model, by shape and in order, one after the other in buckets of about `bucket_bytes`.
COHORT_PROGRAM_API std::vector<GradientBucket> gradient_buckets(const std::vector<std::vector<int64_t>>& shapes,
                                                                int64_t bucket_bytes = 8 << 20);

/// Measures each of none, fp16, bf16, int8, topk:0.01 and powersgd:4 on made-up gradients, without a network: buckets up to about 32 MiB,
/// scaled to all of them.
std::vector<CompressionCost> measure_compression(const std::vector<GradientBucket>& buckets, int num_ranks);

/// All of it for the group at hand. Collective; rank 0's step and the slowest rank's compression count, and every rank gets the same
/// advice.
COHORT_PROGRAM_API AdviceRecord measure_advice(Group& group, StepMeasurement step, const std::vector<GradientBucket>& buckets);

}  // namespace cohort
