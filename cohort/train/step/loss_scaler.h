#pragma once
// The number that the loss is multiplied by in fp16 training, so that small gradients do not become zero.
//
//   strategy.set_gradient_factor(scaler.gradient_factor());
//   (loss * scaler.scale()).backward();
//   outcome = strategy.step({..., .check_finite = true});
//   scaler.update(outcome.skipped);

#include <cstdint>

#include "cohort/base/text/json_fwd.h"

namespace cohort {

struct LossScalerOptions {
  double initial = 65536;
  double growth = 2, backoff = 0.5;
  int64_t growth_interval = 2000;  ///< Steps in a row without an overflow after which the scale grows.
  bool dynamic = true;             ///< false: the scale stays as it is.
};

/// The same on every rank as long as update() gets what all ranks agreed on. Not thread-safe.
class LossScaler {
 public:
  /// Error(kBadInput) unless initial is positive and finite, growth > 1, 0 < backoff < 1 and growth_interval >= 1.
  explicit LossScaler(const LossScalerOptions& options = {});
  /// No scaling: factor 1, update() only counts. For bf16 and fp32.
  static LossScaler none();

  double scale() const { return scale_; }
  double gradient_factor() const { return 1 / scale_; }
  int64_t skipped_steps() const { return skipped_steps_; }  ///< Since the start, resumed runs included.

  /// After each step: `skipped` where a gradient of any rank was infinite or NaN and no rank applied its update. Error(kFailed) once
  /// kMaxSkippedInARow steps in a row were skipped: by then the scale cannot be the reason.
  void update(bool skipped);

  /// For checkpoints: {"scale", "clean_steps", "skipped_in_a_row", "skipped_steps"}.
  Json state() const;
  /// Error(kBadInput) for a state that is none. A fixed scale keeps its own.
  void load(const Json& state);

  /// 65536 halved so often is 6e-5: a gradient that overflows half precision (65504) with that scale is itself above 1e9.
  static constexpr int64_t kMaxSkippedInARow = 30;

 private:
  LossScalerOptions options_;
  double scale_;
  int64_t clean_steps_ = 0, skipped_in_a_row_ = 0, skipped_steps_ = 0;
};

}  // namespace cohort
