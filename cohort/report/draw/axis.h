#pragma once
// Axes of plots: ends and ticks at round numbers, linear or logarithmic.

#include <string>
#include <vector>

namespace cohort::report {

struct Tick {
  double value = 0;
  std::string label;
  bool minor = false;  ///< Hidden where there is little room.
};

struct Axis {
  double low = 0;
  double high = 1;
  bool logarithmic = false;
  std::vector<Tick> ticks;

  /// The position of `value`: 0 at `low`, 1 at `high`, extrapolated outside. On a logarithmic axis -1 for numbers <= 0.
  double fraction(double value) const;
};

/// An axis around [low, high] with ends at round numbers and about `num_ticks` ticks. An empty range is widened. Values must be finite.
Axis linear_axis(double low, double high, int num_ticks);
/// An axis with exactly these ends, for the steps of a training; every second tick is minor where there are more than five.
Axis exact_axis(double low, double high, int num_ticks);
/// An axis around [low, high], both above 0, with ends at 1, 2 or 5 times a power of ten, and ticks at these, or only at powers of ten
/// where the range is wide.
Axis logarithmic_axis(double low, double high);
/// An axis with exactly these ends and at most about `num_ticks` ticks at powers of two.
Axis log2_axis(double low, double high, int num_ticks);

}  // namespace cohort::report
