#pragma once
// Curves of a training: smoothing, robust ranges, and thinning to what a screen can show. Pure functions.

#include <cstddef>
#include <vector>

namespace cohort::report {

struct Point {
  double x = 0;
  double y = 0;  ///< NaN: a gap.
};
using Curve = std::vector<Point>;  ///< x rises.

/// At most about `max_points` (at least 4) points that look the same: the highest and the lowest of each slice of the curve are kept, and
/// so are its first and last point. A slice without any finite point stays a gap. A curve that is short enough comes back as it is.
Curve downsample(const Curve& curve, size_t max_points);

/// Each point becomes the mean of all, weighted by exp(-|distance| / scale), in points to either side: no lag, unlike a running mean. Gaps
/// stay gaps and weigh nothing. O(n).
Curve smooth(const Curve& curve, double scale);

/// Of those that are finite; NaN where none is.
double mean(const std::vector<double>& values);

}  // namespace cohort::report
