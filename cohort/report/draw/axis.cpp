// Round numbers are 1, 2 and 5 times powers of ten. The spacing of ticks is the smallest round number that gives no more than the requested
// number of ticks. Source: Heckbert, "Nice numbers for graph labels", Graphics Gems, 1990; we only round up.

#include "cohort/report/draw/axis.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <utility>

#include "cohort/base/text/text.h"
#include "cohort/report/draw/format.h"

namespace cohort::report {
namespace {

constexpr double kLargest = 1e300;    // Larger values would overflow the width of the axis.
constexpr double kSmallest = 1e-290;  // Smaller values would underflow the spacing of ticks.
constexpr size_t kFewTicks = 5;       // Labels that fit side by side on a small screen.
constexpr double kSlack = 1e-9;       // Rounding tolerance as a share of the tick spacing.

/// Makes the ends finite, ordered and distinct.
void sanitize(double& low, double& high) {
  low = std::clamp(low, -kLargest, kLargest);
  high = std::clamp(high, -kLargest, kLargest);
  if (std::abs(low) < kSmallest) low = 0;
  if (std::abs(high) < kSmallest) high = 0;
  if (low > high) std::swap(low, high);
  const double size = std::max(std::abs(low), std::abs(high));
  if (high - low <= 1e-9 * size || high == low) {
    const double margin = size > 0 ? 0.1 * size : 0.5;
    low -= margin;
    high += margin;
  }
}

double round_spacing(double width, int num_ticks) {
  const double raw = width / std::max(num_ticks, 1);
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (step * power >= raw * (1 - kSlack)) return step * power;
  }
  return 10 * power;
}

/// All labels of an axis have the same number of decimals.
std::string tick_label(double value, double spacing) {
  const double size = std::abs(value);
  if (size >= 1e7 || spacing < 1e-5) return significant(value, 2);
  const int decimals = std::max(0, -static_cast<int>(std::floor(std::log10(spacing) + kSlack)));
  if (decimals == 0) return with_commas(std::llround(value));
  char out[48];
  std::snprintf(out, sizeof out, "%.*f", decimals, size < spacing / 2 ? 0.0 : value);
  return out;
}

/// 256, 1/16, 2^20.
std::string power_of_two(int power) {
  if (std::abs(power) >= 20) return "2^" + std::to_string(power);
  return power >= 0 ? with_commas(int64_t{1} << power) : "1/" + with_commas(int64_t{1} << -power);
}

/// Ticks at the multiples of `spacing` within [low, high].
void add_ticks(Axis& axis, double spacing) {
  const double first = std::ceil(axis.low / spacing - kSlack), last = std::floor(axis.high / spacing + kSlack);
  for (int i = 0; i <= 100 && first + i <= last; ++i) {
    const double value = (first + i) * spacing;
    axis.ticks.push_back({value, tick_label(value, spacing), false});
  }
}

}  // namespace

double Axis::fraction(double value) const {
  if (!logarithmic) return (value - low) / (high - low);
  return value > 0 ? (std::log(value) - std::log(low)) / (std::log(high) - std::log(low)) : -1;
}

Axis linear_axis(double low, double high, int num_ticks) {
  sanitize(low, high);
  const double spacing = round_spacing(high - low, num_ticks);
  Axis axis;
  axis.low = std::floor(low / spacing + kSlack) * spacing;
  axis.high = std::ceil(high / spacing - kSlack) * spacing;
  add_ticks(axis, spacing);
  return axis;
}

Axis exact_axis(double low, double high, int num_ticks) {
  sanitize(low, high);
  Axis axis;
  axis.low = low;
  axis.high = high;
  // Steps are whole numbers.
  const double spacing = std::max(1.0, round_spacing(high - low, num_ticks));
  add_ticks(axis, spacing);
  if (axis.ticks.size() <= kFewTicks) return axis;
  for (Tick& tick : axis.ticks) tick.minor = std::fmod(std::round(tick.value / spacing), 2) != 0;
  return axis;
}

Axis logarithmic_axis(double low, double high) {
  low = std::clamp(low, kSmallest, kLargest);
  high = std::clamp(high, low, kLargest);
  if (high < low * 1.5) low /= 1.5, high *= 1.5;
  Axis axis;
  axis.logarithmic = true;
  std::vector<double> around;  // Round numbers from the last one at or below `low` to the first one at or above `high`.
  for (int power = static_cast<int>(std::floor(std::log10(low) + kSlack)); around.empty() || around.back() < high * (1 - kSlack); ++power) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double value = factor * std::pow(10, power);
      if (!around.empty() && around.back() >= high * (1 - kSlack)) break;
      if (value <= low * (1 + kSlack)) around.assign(1, value);
      else around.push_back(value);
    }
  }
  axis.low = around.front();
  axis.high = around.back();
  const double decades = std::log10(axis.high) - std::log10(axis.low);
  const int every = std::max(1, static_cast<int>(std::ceil(decades / 6)));
  for (const double value : around) {
    const double power = std::log10(value);
    const bool is_power = std::abs(power - std::round(power)) < 1e-6;
    if (decades > 2.5 && (!is_power || std::fmod(std::abs(std::round(power)), every) != 0)) continue;
    axis.ticks.push_back({value, significant(value, value >= 1 && value < 1000 ? static_cast<int>(std::log10(value)) + 1 : 1), false});
  }
  return axis;
}

Axis log2_axis(double low, double high, int num_ticks) {
  low = std::clamp(low, 1e-12, 1e18);
  high = std::clamp(high, low, 1e18);
  const int first = static_cast<int>(std::floor(std::log2(low) + 1e-9));
  const int last = std::max(first + 1, static_cast<int>(std::ceil(std::log2(high) - 1e-9)));
  // Whole octaves would leave much room empty: the ends are the values themselves, the ticks the powers between.
  Axis axis;
  axis.logarithmic = true;
  axis.low = std::min(low, high / 1.5);
  axis.high = high;
  const int every = std::max(1, (last - first + num_ticks - 1) / std::max(num_ticks, 1));
  for (int power = first; power <= last; power += 1) {
    const double value = std::exp2(power);
    const bool is_inside = value >= axis.low * 0.97 && value <= axis.high * 1.03;
    if (!is_inside || ((power % every) + every) % every != 0) continue;
    axis.ticks.push_back({value, power_of_two(power), false});
  }
  if (axis.ticks.empty()) axis.ticks.push_back({low, significant(low, 3), false});
  return axis;
}

}  // namespace cohort::report
