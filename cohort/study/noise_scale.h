#pragma once
// The gradient noise scale (McCandlish et al., 2018, 1812.06162, appendix A.1), from squared norms of gradients of a small and a large
// batch.

#include <cstdint>

namespace cohort::study {

/// Sums of the unbiased two-batch estimates over steps; the ratio of averages, never the average of ratios.
class NoiseScale {
 public:
  /// `small_squared`: |g|^2 of the mean gradient of `small` samples (averaged over several such, where there are); `large_squared` of
  /// `large`. Error(kBadInput) unless 0 < small < large.
  void add(double small_squared, double small, double large_squared, double large);
  int64_t num_steps() const { return num_steps_; }
  double gradient_squared() const;  ///< Mean estimate of |G|^2; may be negative where noise is larger than the signal.
  double trace() const;             ///< Mean estimate of tr(Sigma), per sample.
  /// trace / gradient_squared, samples; NaN where there is no estimate, or it is not positive.
  double noise_scale() const;

 private:
  int64_t num_steps_ = 0;
  double gradient_squared_sum_ = 0, trace_sum_ = 0;
};

}  // namespace cohort::study
