#pragma once
// The number that the loss is multiplied by in fp16 training, so that small gradients do not become zero.
//
//   strategy.set_gradient_factor(scaler.gradient_factor());
//   (loss * scaler.scale()).backward();
//   outcome = strategy.step({..., .check_finite = true});
//   scaler.update(outcome.skipped);

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "cohort/base/text/json_fwd.h"

namespace cohort {

class LayerGraph;

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

// Where numbers stopped being finite, for the message that ends a training.

/// The first tensor of `model` that is not finite, in the order of its layers: a weight or running statistic; else, where `input` is a
/// tensor, the input or a layer's output on it, for which the layers run once more, without gradients. "; the first tensor that is not
/// finite: the output of layer 'c' (linear), (64, 10), 3 of 640 elements; the largest of what it takes is 2e+38". Where all are finite that
/// is said. Layers whose ranks exchange must be called on all ranks, so give them no input.
std::string first_not_finite(const LayerGraph& model, const at::Tensor& input);

/// Error(kFailed) in one line: that `which` ("the loss") is not finite after the forward of `step`, counted from 0; what may help: a rate
/// smaller than `rate`, and `others`, as name_settings() has them; `where`: what first_not_finite() found.
[[noreturn]] void fail_not_finite(const LayerGraph& model, const std::string& which, double loss, int64_t step, double rate,
                                  const std::string& others, const std::string& where);

}  // namespace cohort
