#pragma once
// Curves of a training: smoothing, robust ranges, and thinning to what a screen can show. Pure functions.

#include <cstddef>
#include <vector>

namespace cohort::report {

struct Point {
  double x = 0;
  double y = 0;  ///< NaN: a gap.
};
using Curve = std::vector<Point>;  ///< x increases.

/// At most about `max_points` (at least 4) points that look the same: the first and the last, and the highest and the lowest of each
/// segment between. A segment without finite points becomes a gap. Short curves are returned unchanged.
Curve downsample(const Curve& curve, size_t max_points);

/// Each point becomes the mean of all points, weighted by exp(-|distance| / scale) with distances in points: two-sided, so without the lag
/// of a running mean. Gaps stay gaps and have no weight. O(n).
Curve smooth(const Curve& curve, double scale);

/// The mean of the finite values; NaN where there are none.
double mean(const std::vector<double>& values);

}  // namespace cohort::report
