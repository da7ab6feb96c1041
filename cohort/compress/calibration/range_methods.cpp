// The methods:
//
// min-max      all values that were seen. Nothing is cut off; one outlier makes all steps coarse.
// percentile   all values but the few at each end (McKinstry et al. 2018, "Discovering low-precision networks close to full-precision
//              networks", section 3.1): a share of 0.00005 is left out below and above. Walks the bins from each end until the share is
//              reached.
// mse          the range with the least mean squared error of the codes (Banner et al. 2019, "Post training 4-bit quantization of
//              convolutional networks for rapid-deployment", section 2, by search in place of a formula for one distribution):
//                E(f) = sum over bins of count * (value - nearest code of [f low, f high])^2,  f = 0.01, 0.02, ... 1
//              Within a bin the error of rounding is that of an even spread, step^2 / 12; a value outside loses its distance to the end.
//              Of equal errors the larger range.
//
// Cost: none, one and 100 passes over the bins.
#include "cohort/compress/calibration/range_methods.h"

#include <algorithm>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

constexpr double kShareLeftOut = 0.00005;
constexpr int kNumFractions = 100;

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

const std::vector<RangeMethod>& range_methods() {
  static const std::vector<RangeMethod> methods = {
      {"min-max", "all values that were seen", [](const Histogram& values) { return values.range(); }},
      {"percentile", "all but a share of 0.00005 at each end", inner_range},
      {"mse", "the least mean squared error of the codes", least_squared_error}};
  return methods;
}

const RangeMethod& find_range_method(const std::string& name) {
  std::vector<std::string> names;
  for (const RangeMethod& method : range_methods()) {
    if (method.name == name) return method;
    names.push_back(method.name);
  }
  fail(ErrorCode::kBadInput, "--calibration ", name, did_you_mean(name, names), ": expected one of ", join(names, " "));
}

}  // namespace cohort
