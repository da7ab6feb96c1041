#pragma once
// Axes of plots: ends and ticks at round numbers, linear or logarithmic.

#include <string>
#include <vector>

namespace cohort::report {

struct Tick {
  double value = 0;
  std::string label;
  bool minor = false;  ///< Left out where there is little room.
};

struct Axis {
  double low = 0;
  double high = 1;
  bool logarithmic = false;
  std::vector<Tick> ticks;

  /// Where `value` lies between the ends: 0 at `low`, 1 at `high`, outside of that beyond them. A logarithmic axis puts numbers <= 0 at -1.
  double fraction(double value) const;
};

/// Around [low, high], with the ends moved out to round numbers; about `num_ticks` ticks. A range of no width is widened. Values must be
/// finite.
Axis linear_axis(double low, double high, int num_ticks);
/// The same without moving the ends; every second tick is minor where there are more than five. For the steps of a training.
Axis exact_axis(double low, double high, int num_ticks);
/// Around [low, high], both above 0, ends at 1, 2 or 5 times a power of ten; ticks at these, or at powers of ten alone where the range is
/// wide.
Axis logarithmic_axis(double low, double high);
/// Ends at `low` and `high`, ticks at powers of two; no more than about `num_ticks` of them are labelled.
Axis log2_axis(double low, double high, int num_ticks);

}  // namespace cohort::report
