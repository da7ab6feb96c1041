// All values but the few at each end (McKinstry et al. 2018, "Discovering low-precision networks close to full-precision networks",
// section 3.1): a share of 0.00005 is left out below and above.
// Steps: walk the bins from each end until the share is reached. Cost: one pass over the bins.

#include <algorithm>
#include <numeric>

#include "cohort/model_compression/calibration/range_methods.h"

namespace cohort {
namespace {

constexpr double kShareLeftOut = 0.00005;

ValueRange inner_range(const Histogram& values) {
  const double allowed = kShareLeftOut * values.total();
  const std::vector<double>& counts = values.counts();
  size_t low = 0, high = Histogram::kNumBins;
  for (double left_out = counts[low]; left_out <= allowed && low + 1 < high; left_out += counts[low]) ++low;
  for (double left_out = counts[high - 1]; left_out <= allowed && high - 1 > low; left_out += counts[high - 1]) --high;
  const auto edge = [&](size_t bin) { return values.range().low + static_cast<double>(bin) * values.width(); };
  // Zero stays inside: padding and ReLU are made of it.
  return {std::min(edge(low), 0.0), std::max(edge(high), 0.0)};
}

}  // namespace

RangeMethod percentile_range() { return {"percentile", "all but a share of 0.00005 at each end", inner_range}; }

}  // namespace cohort
