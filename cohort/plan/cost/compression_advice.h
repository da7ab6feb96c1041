#pragma once
// Whether compressing gradients would pay: the step predicted for each compression from measured seconds and bytes.
//
// Model, in seconds: now the step takes S, of which the exchange shows for E (the rest of it hides behind backward). t(c) is the time of
// the link for the bytes and exchanges of compression c, k(c) the time to compress and decompress on this machine. What hides now, h =
// max(0, t(none) - E), hides then too; what shows beyond the link's time, w = max(0, E - t(none)), is waiting for slower ranks and stays:
//   step(c) = S - E + w + k(c) + max(0, t(c) - h)          step(none) = S
// Compression takes the processor that computes, so k(c) is added in full. Where the step was measured with a compression n, its k(n) is
// part of what shows, and the rest follows alike: e = max(0, E - k(n)), h = max(0, t(n) - e), w = max(0, e - t(n)), and
//   step(c) = S - E + w + k(c) + max(0, t(c) - h)          step(n) = S
// Torch-free; it is measured by train/advice/run_advice.h.

#include <string>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/record/advice_records.h"
#include "cohort/world/link_estimate.h"

namespace cohort {

struct StepMeasurement {
  double step_seconds = 0;
  double exposed_seconds = 0;     ///< Part of the step spent waiting for the exchange of gradients.
  std::string compress = "none";  ///< The compression during the measurement.
};

/// What one compression would cost a rank in each step.
struct CompressionCost {
  std::string compress;         ///< A name of make_compressor().
  double compress_seconds = 0;  ///< To compress and decompress all gradients once.
  ExchangeCost exchange;        ///< All buckets.
};

/// `costs` begins with "none" and has the compression in use. Arithmetic only. Error(kBadInput) otherwise.
AdviceRecord advise(const StepMeasurement& step, const LinkEstimate& link, const std::vector<CompressionCost>& costs);

}  // namespace cohort
