#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace cohort {

/// The upper median; 0 for no values.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// The quantile of the finite `values` by linear interpolation; NaN where none is finite.
inline double quantile(std::vector<double> values, double fraction) {
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(values.begin(), values.end());
  const double place = fraction * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(place), above = std::min(below + 1, values.size() - 1);
  return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
}

/// A value and its confidence interval.
struct Estimate {
  double value = 0, low = 0, high = 0;
};

/// The product of two independent estimates: the logarithms of their relative deviations add in squares. An infinite end stays infinite; an
/// end of 0 is unknown and counts as no deviation.
inline Estimate product(const Estimate& a, const Estimate& b) {
  const auto log_ratio = [](double above, double below) { return above > 0 && below > 0 ? std::log(above / below) : 0; };
  const double value = a.value * b.value;
  return {.value = value,
          .low = value * std::exp(-std::hypot(log_ratio(a.value, a.low), log_ratio(b.value, b.low))),
          .high = value * std::exp(std::hypot(log_ratio(a.high, a.value), log_ratio(b.high, b.value)))};
}

}  // namespace cohort
