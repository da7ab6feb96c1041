// The range whose codes tell most about the values (Migacz 2017, "8-bit inference with TensorRT", slides 26 to 32).
//
//   for f = 1/16 ... 1:  P = the bins of [f low, f high], what is outside counted in the bins at the ends
//                        Q = those bins (without what is outside) merged into 128 levels; each level spread evenly over its bins that are
//                            not empty
//                        choose the f with the least sum of P log(P / Q)
//
// Where we differ: ranges need not be the same on both sides of zero, for codes have a zero point; a bin that P has and Q has not counts
// with a small probability in place of an infinite divergence. The bin that holds zero counts as its fuller neighbour does: after a ReLU
// half of all values are zero, any range has a code for it, and with such a peak what the other values lose would hardly count (NVIDIA's
// pytorch-quantization does so too). Of equal ones the larger range. Cost: 121 passes over the bins.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cohort/model_compression/calibration/range_methods.h"

namespace cohort {
namespace {

constexpr size_t kNumLevels = kActivationSteps + 1, kStepOfBins = 16;
constexpr double kSmallestProbability = 1e-9;

/// Each level's count spread over its bins that are not empty.
std::vector<double> merged(const std::vector<double>& bins) {
  std::vector<double> spread(bins.size());
  for (size_t level = 0; level < kNumLevels; ++level) {
    const size_t begin = level * bins.size() / kNumLevels, end = (level + 1) * bins.size() / kNumLevels;
    double count = 0, num_filled = 0;
    for (size_t bin = begin; bin < end; ++bin) {
      count += bins[bin];
      num_filled += bins[bin] > 0 ? 1 : 0;
    }
    for (size_t bin = begin; bin < end; ++bin) spread[bin] = bins[bin] > 0 ? count / num_filled : 0;
  }
  return spread;
}

/// Of the bins [begin, end) and what their codes tell.
double divergence(const std::vector<double>& counts, size_t begin, size_t end) {
  const auto at = [&](size_t bin) { return counts.begin() + static_cast<std::ptrdiff_t>(bin); };
  std::vector<double> reference(at(begin), at(end));
  const std::vector<double> coded = merged(reference);
  reference.front() += std::accumulate(counts.begin(), at(begin), 0.0);
  reference.back() += std::accumulate(at(end), counts.end(), 0.0);
  const double of_reference = std::accumulate(reference.begin(), reference.end(), 0.0);
  const double of_coded = std::max(std::accumulate(coded.begin(), coded.end(), 0.0), kSmallestProbability);
  double sum = 0;
  for (size_t bin = 0; bin < reference.size(); ++bin) {
    const double p = reference[bin] / of_reference, q = std::max(coded[bin] / of_coded, kSmallestProbability);
    if (p > 0) sum += p * std::log(p / q);
  }
  return sum;
}

/// Without the peak of zeros.
std::vector<double> counts_beside_zero(const Histogram& values) {
  std::vector<double> counts = values.counts();
  const auto zero = std::min(static_cast<size_t>(-values.range().low / values.width()), counts.size() - 1);
  const double before = zero > 0 ? counts[zero - 1] : 0, after = zero + 1 < counts.size() ? counts[zero + 1] : 0;
  counts[zero] = std::min(counts[zero], std::max(before, after));
  return counts;
}

ValueRange least_divergence(const Histogram& values) {
  const std::vector<double> counts = counts_beside_zero(values);
  const auto zero = static_cast<size_t>(std::lround(-values.range().low / values.width()));  // The bin edge nearest to it.
  const auto edge = [&](size_t bin) { return values.range().low + static_cast<double>(bin) * values.width(); };
  ValueRange best = values.range();
  double least = divergence(counts, 0, Histogram::kNumBins);
  for (size_t width = Histogram::kNumBins - kStepOfBins; width >= kNumLevels; width -= kStepOfBins) {
    const size_t begin = zero - zero * width / Histogram::kNumBins, end = begin + width;
    const double found = divergence(counts, begin, end);
    if (found < least) {
      least = found;
      best = {std::min(edge(begin), 0.0), std::max(edge(end), 0.0)};
    }
  }
  return best;
}

}  // namespace

RangeMethod entropy_range() { return {"entropy", "the least information lost (Kullback-Leibler divergence)", least_divergence}; }

}  // namespace cohort
