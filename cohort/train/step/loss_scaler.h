#pragma once
// Loss scaling for fp16 training, which keeps small gradients from becoming zero, and the error for a loss that is not finite.
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
  bool dynamic = true;             ///< false: the scale is constant.
};

/// All ranks hold the same scale, since update() gets what they agreed on. Not thread-safe.
class LossScaler {
 public:
  /// Error(kBadInput) unless initial is positive and finite, growth > 1, 0 < backoff < 1 and growth_interval >= 1.
  explicit LossScaler(const LossScalerOptions& options = {});
  /// No scaling: factor 1, update() only counts. For bf16 and fp32.
  static LossScaler none();

  double scale() const { return scale_; }
  double gradient_factor() const { return 1 / scale_; }
  int64_t skipped_steps() const { return skipped_steps_; }  ///< Since the start, resumed runs included.

  /// Called after each step. `skipped`: a gradient of some rank was infinite or NaN, and no rank applied its update. Error(kFailed) after
  /// kMaxSkippedInARow skipped steps in a row, for which the scale cannot be the reason.
  void update(bool skipped);

  /// For checkpoints: {"scale", "clean_steps", "skipped_in_a_row", "skipped_steps"}.
  Json state() const;
  /// Error(kBadInput) for an invalid state. A constant scale is kept.
  void load(const Json& state);

  /// 65536 halved that often is 6e-5; a gradient that still overflows fp16 (65504) is itself above 1e9.
  static constexpr int64_t kMaxSkippedInARow = 30;

 private:
  LossScalerOptions options_;
  double scale_;
  int64_t clean_steps_ = 0, skipped_in_a_row_ = 0, skipped_steps_ = 0;
};

/// Describes the first tensor of `model` that is not finite: a weight or running statistic, else the input or a layer's output on it, for
/// which the layers run once more without gradients. Returns a clause such as "; the first tensor that is not finite: the output of layer
/// 'c' (linear), (64, 10), 3 of 640 elements; ...", or one that says that all are finite. `input` must be undefined where layers exchange
/// with other ranks.
std::string first_not_finite(const LayerGraph& model, const at::Tensor& input);

/// Throws Error(kFailed): `which` ("the loss") is not finite at `step`, counted from 0. The advice is a learning rate below `rate`, and
/// `others`; `where` is the result of first_not_finite().
[[noreturn]] void fail_not_finite(const LayerGraph& model, const std::string& which, double loss, int64_t step, double rate,
                                  const std::string& others, const std::string& where);

}  // namespace cohort
