#pragma once
// The gradient noise scale (McCandlish et al., 2018, 1812.06162, appendix A.1), from squared norms of gradients of a small and a large
// batch. Its use: docs/algorithms/noise_scale.md.

#include <cstdint>
#include <span>
#include <vector>

namespace cohort::study {

/// One step's unbiased estimates of |G|^2 and of tr(Sigma) per sample. Either may come out negative.
struct NoiseEstimate {
  double gradient_squared = 0, trace = 0;
};
/// `small_squared` is |g|^2 of the mean gradient of `small` samples (averaged over several small batches), `large_squared` that of `large`
/// samples. Error(kBadInput) unless 0 < small < large and both norms are finite and not negative.
NoiseEstimate two_batch_estimate(double small_squared, double small, double large_squared, double large);
/// trace / gradient_squared, samples; NaN unless both are positive.
double noise_scale_of(const NoiseEstimate& mean);

/// The running noise scale while the model trains: the plain mean of the first `window` estimates, then an exponentially weighted one in
/// which each new estimate weighs 1 / window: no start-up bias, and a memory of about 2 x window estimates.
class RecentNoiseScale {
 public:
  static constexpr int64_t kWindow = 50;
  /// Error(kBadInput) for a window below 1.
  explicit RecentNoiseScale(int64_t window = kWindow);
  /// See two_batch_estimate().
  void add(double small_squared, double small, double large_squared, double large);
  int64_t num_steps() const { return num_steps_; }
  const NoiseEstimate& mean() const { return mean_; }  ///< Zeros before add().
  double noise_scale() const { return noise_scale_of(mean_); }
  /// Continues from the state of a checkpoint.
  void restore(int64_t num_steps, const NoiseEstimate& mean);

 private:
  int64_t window_, num_steps_ = 0;
  NoiseEstimate mean_;
};

/// The squared gradient norms measured in one step.
struct NoiseMeasurement {
  int64_t step = 0;
  double small_squared = 0, small = 0, large_squared = 0, large = 0;
};
/// The noise scale over consecutive measurements.
struct NoiseWindow {
  int64_t first_step = 0, last_step = 0, num_measurements = 0;
  double batch = 0;  ///< Mean size of the large batch, in samples.
  NoiseEstimate mean;
  double noise_scale = 0;  ///< NaN where there is no estimate.
  double standard_error =
      0;  ///< Standard error of noise_scale, by the jackknife over measurements; NaN for fewer than 3, or without an estimate.
};
/// Splits measurements (steps increase) into at most `max_windows` windows whose ends lie a constant ratio of steps apart, as the scale
/// changes with the logarithm of time; each holds at least `min_measurements` (the last one the remainder), or all measurements where there
/// are fewer.
std::vector<NoiseWindow> noise_windows(std::span<const NoiseMeasurement> measurements, int max_windows = 8, int64_t min_measurements = 10);

}  // namespace cohort::study
