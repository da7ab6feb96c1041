#include "cohort/report/draw/curve.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace cohort::report {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// Adds sum over j < i of keep^(i-j) y_j to `sums[i]` and the sum of the weights to `weights[i]`; `at(i)` is the index of the i-th point.
template <typename At>
void add_one_side(const Curve& curve, double keep, At at, std::vector<double>& sums, std::vector<double>& weights) {
  double sum = 0, weight = 0;
  for (size_t i = 0; i < curve.size(); ++i) {
    sums[at(i)] += sum;
    weights[at(i)] += weight;
    const double y = curve[at(i)].y;
    sum = keep * (sum + (std::isfinite(y) ? y : 0));
    weight = keep * (weight + (std::isfinite(y) ? 1 : 0));
  }
}

}  // namespace

Curve downsample(const Curve& curve, size_t max_points) {
  if (curve.size() <= max_points || curve.size() < 4) return curve;
  // The two ends, and two points per segment between them.
  const size_t num_inner = curve.size() - 2;
  const size_t num_slices = std::max<size_t>(1, (std::max<size_t>(max_points, 4) - 2) / 2);
  Curve out{curve.front()};
  for (size_t slice = 0; slice < num_slices; ++slice) {
    const size_t begin = 1 + num_inner * slice / num_slices, end = 1 + num_inner * (slice + 1) / num_slices;
    size_t lowest = end, highest = end;
    for (size_t i = begin; i < end; ++i) {
      if (!std::isfinite(curve[i].y)) continue;
      if (lowest == end || curve[i].y < curve[lowest].y) lowest = i;
      if (highest == end || curve[i].y > curve[highest].y) highest = i;
    }
    if (lowest == end) {
      if (begin < end) out.push_back({curve[begin].x, kNaN});
      continue;
    }
    out.push_back(curve[std::min(lowest, highest)]);
    if (lowest != highest) out.push_back(curve[std::max(lowest, highest)]);
  }
  out.push_back(curve.back());
  return out;
}

Curve smooth(const Curve& curve, double scale) {
  const double keep = std::exp(-1 / std::max(scale, 1e-3));
  const size_t size = curve.size();
  std::vector<double> sums(size), weights(size);
  for (size_t i = 0; i < size; ++i) {
    if (std::isfinite(curve[i].y)) sums[i] = curve[i].y, weights[i] = 1;
  }
  add_one_side(curve, keep, [](size_t i) { return i; }, sums, weights);
  add_one_side(curve, keep, [size](size_t i) { return size - 1 - i; }, sums, weights);
  Curve out(size);
  for (size_t i = 0; i < size; ++i) out[i] = {curve[i].x, std::isfinite(curve[i].y) ? sums[i] / weights[i] : kNaN};
  return out;
}

double mean(const std::vector<double>& values) {
  double sum = 0, count = 0;
  for (const double value : values) {
    if (std::isfinite(value)) sum += value, ++count;
  }
  return count > 0 ? sum / count : kNaN;
}

}  // namespace cohort::report
