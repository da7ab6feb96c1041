#include "cohort/compress/calibration/histogram.h"

#include <algorithm>
#include <cmath>

namespace cohort {

Histogram::Histogram(ValueRange range) : range_{std::min(range.low, 0.0), std::max(range.high, 0.0)} {
  if (!(range_.high > range_.low)) range_.high = range_.low + 1;  // Zeros alone.
}

void Histogram::add(std::span<const float> values) {
  const double bins_a_unit = 1 / width();
  for (const float value : values) {
    if (std::isnan(value)) continue;
    const double bin = (static_cast<double>(value) - range_.low) * bins_a_unit;
    counts_[static_cast<size_t>(std::clamp(bin, 0.0, static_cast<double>(kNumBins - 1)))] += 1;
    total_ += 1;
  }
}

}  // namespace cohort
