// The gradient noise scale B = tr(Sigma) / |G|^2: how many samples a batch needs before its mean gradient is as much signal as noise.
//
// G is the true gradient, Sigma the covariance of one sample's gradient. A mean gradient g of b independent samples has
//   E|g|^2 = |G|^2 + tr(Sigma) / b.
// Two batch sizes s < l give two equations, so, without bias,
//   |G|^2     = (l |g_l|^2 - s |g_s|^2) / (l - s)
//   tr(Sigma) = (|g_s|^2 - |g_l|^2) / (1/s - 1/l).
// The small batches are parts of the large one; that costs no bias, as neither equation asks for independence of the two.
//
// The ratio of two noisy numbers is biased, and infinite where the lower one is near 0: so both are averaged over steps and then divided.
// The error of the ratio comes from the jackknife over steps.
//
// Source: McCandlish, Kaplan, Amodei et al., 2018, "An Empirical Model of Large-Batch Training", 1812.06162, appendix A.1. Differences:
// small batches of unequal sizes (docs/algorithms/noise_scale.md), the running mean without start-up bias, the jackknife.
#include "cohort/study/noise/noise_scale.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cohort/base/fail.h"

namespace cohort::study {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

NoiseEstimate estimate_of(const NoiseMeasurement& m) { return two_batch_estimate(m.small_squared, m.small, m.large_squared, m.large); }

/// sqrt((n-1)/n sum (R_-i - mean R_-i)^2), R_-i the ratio without measurement i.
double jackknife_error(const std::vector<NoiseEstimate>& estimates, const NoiseEstimate& mean) {
  const double n = static_cast<double>(estimates.size());
  if (n < 3 || std::isnan(noise_scale_of(mean))) return kNaN;
  std::vector<double> ratios;
  double ratio_sum = 0;
  for (const NoiseEstimate& one : estimates) {
    const double ratio = (n * mean.trace - one.trace) / (n * mean.gradient_squared - one.gradient_squared);
    ratios.push_back(ratio);
    ratio_sum += ratio;
  }
  double squares = 0;
  for (const double ratio : ratios) squares += (ratio - ratio_sum / n) * (ratio - ratio_sum / n);
  return std::sqrt((n - 1) / n * squares);
}

NoiseWindow window_of(std::span<const NoiseMeasurement> measurements) {
  NoiseWindow window{.first_step = measurements.front().step,
                     .last_step = measurements.back().step,
                     .num_measurements = static_cast<int64_t>(measurements.size())};
  const double n = static_cast<double>(measurements.size());
  std::vector<NoiseEstimate> estimates;
  for (const NoiseMeasurement& one : measurements) {
    estimates.push_back(estimate_of(one));
    window.batch += one.large;
    window.mean.gradient_squared += estimates.back().gradient_squared;
    window.mean.trace += estimates.back().trace;
  }
  window.batch /= n;
  window.mean.gradient_squared /= n;
  window.mean.trace /= n;
  window.noise_scale = noise_scale_of(window.mean);
  window.standard_error = jackknife_error(estimates, window.mean);
  return window;
}

}  // namespace

NoiseEstimate two_batch_estimate(double small_squared, double small, double large_squared, double large) {
  if (!(small > 0 && small < large && std::isfinite(large)))
    fail(ErrorCode::kBadInput, "the noise scale needs a small and a larger batch; got ", small, " and ", large, " samples");
  if (!(small_squared >= 0 && large_squared >= 0 && std::isfinite(small_squared) && std::isfinite(large_squared)))
    fail(ErrorCode::kBadInput, "the noise scale needs finite squared norms of gradients; got ", small_squared, " and ", large_squared);
  return {.gradient_squared = (large * large_squared - small * small_squared) / (large - small),
          .trace = (small_squared - large_squared) / (1 / small - 1 / large)};
}

double noise_scale_of(const NoiseEstimate& mean) {
  return mean.gradient_squared > 0 && mean.trace > 0 ? mean.trace / mean.gradient_squared : kNaN;
}

RecentNoiseScale::RecentNoiseScale(int64_t window) : window_(window) {
  if (window < 1) fail(ErrorCode::kBadInput, "a window of ", window, " estimates; it must be at least 1");
}

void RecentNoiseScale::add(double small_squared, double small, double large_squared, double large) {
  const NoiseEstimate one = two_batch_estimate(small_squared, small, large_squared, large);
  const double weight = 1 / static_cast<double>(std::min(++num_steps_, window_));
  mean_.gradient_squared += weight * (one.gradient_squared - mean_.gradient_squared);
  mean_.trace += weight * (one.trace - mean_.trace);
}

void RecentNoiseScale::restore(int64_t num_steps, const NoiseEstimate& mean) {
  num_steps_ = num_steps;
  mean_ = mean;
}

std::vector<NoiseWindow> noise_windows(std::span<const NoiseMeasurement> measurements, int max_windows, int64_t min_measurements) {
  std::vector<NoiseWindow> windows;
  if (measurements.empty()) return windows;
  const double first = std::max<double>(1, static_cast<double>(measurements.front().step)),
               span = static_cast<double>(measurements.back().step) / first;
  const size_t least = static_cast<size_t>(std::max<int64_t>(1, min_measurements));
  size_t begin = 0;
  for (int i = 1; i <= max_windows && begin < measurements.size(); ++i) {
    const double end_step = first * std::pow(span, static_cast<double>(i) / max_windows) * (1 + 1e-9);
    size_t end = begin;
    while (end < measurements.size() && static_cast<double>(measurements[end].step) <= end_step) ++end;
    if (i == max_windows) end = measurements.size();
    if (end - begin < least && i < max_windows) continue;
    windows.push_back(window_of(measurements.subspan(begin, end - begin)));
    begin = end;
  }
  return windows;
}

}  // namespace cohort::study
