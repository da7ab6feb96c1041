// The range with the least mean squared error of the codes (Banner et al. 2019, "Post training 4-bit quantization of convolutional networks
// for rapid-deployment", section 2, by search in place of a formula for one distribution).
//
//   E(f) = sum over bins of count * (value - nearest code of [f low, f high])^2,  f = 0.01, 0.02, ... 1
//
// Within a bin the error of rounding is that of an even spread, step^2 / 12; a value outside loses its distance to the end. Of equal errors
// the larger range. Cost: 100 passes over the bins.

#include <algorithm>

#include "cohort/model_compression/calibration/range_methods.h"

namespace cohort {
namespace {

constexpr int kNumFractions = 100;

double squared_error(const Histogram& values, const ValueRange& range) {
  const double step = (range.high - range.low) / kActivationSteps, rounding = step * step / 12;
  double sum = 0;
  for (size_t bin = 0; bin < Histogram::kNumBins; ++bin) {
    const double value = values.middle(bin), cut_off = value - std::clamp(value, range.low, range.high);
    sum += values.counts()[bin] * (cut_off * cut_off + rounding);
  }
  return sum;
}

ValueRange least_squared_error(const Histogram& values) {
  ValueRange best = values.range();
  double least = squared_error(values, best);
  for (int i = kNumFractions - 1; i > 0; --i) {
    const double fraction = static_cast<double>(i) / kNumFractions;
    const ValueRange range{fraction * values.range().low, fraction * values.range().high};
    const double error = squared_error(values, range);
    if (error < least) {
      least = error;
      best = range;
    }
  }
  return best;
}

}  // namespace

RangeMethod squared_error_range() { return {"mse", "the least mean squared error of the codes", least_squared_error}; }

}  // namespace cohort
