// Dynamic loss scaling (Micikevicius et al. 2018, section 3.2) with the constants and rules of PyTorch's GradScaler: multiply by 0.5 after
// a step whose gradients overflowed, by 2 after 2000 steps in a row without. Where we differ: it ends the run with a sentence after 30
// overflows in a row, where GradScaler goes on to a scale of 0.

#include "cohort/train/step/loss_scaler.h"

#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"

namespace cohort {

static bool is_usable(double scale) { return scale > 0 && std::isfinite(static_cast<float>(scale)) && std::isfinite(1 / scale); }

LossScaler::LossScaler(const LossScalerOptions& options) : options_(options), scale_(options.initial) {
  if (!is_usable(options.initial) || !(options.growth > 1) || !(options.backoff > 0 && options.backoff < 1) ||
      options.growth_interval < 1) {
    fail(ErrorCode::kBadInput, "loss scale: initial ", options.initial, " must be positive and finite, growth ", options.growth,
         " above 1, backoff ", options.backoff, " between 0 and 1, and the interval ", options.growth_interval, " at least 1");
  }
}

LossScaler LossScaler::none() { return LossScaler({.initial = 1, .dynamic = false}); }

void LossScaler::update(bool skipped) {
  if (!skipped) {
    skipped_in_a_row_ = 0;
    if (!options_.dynamic || ++clean_steps_ < options_.growth_interval) return;
    clean_steps_ = 0;
    if (is_usable(scale_ * options_.growth)) scale_ *= options_.growth;
    return;
  }
  clean_steps_ = 0;
  ++skipped_steps_;
  if (++skipped_in_a_row_ >= kMaxSkippedInARow) {
    fail(ErrorCode::kFailed, "gradients were infinite or NaN in ", skipped_in_a_row_, " steps in a row, the last with a loss scale of ",
         scale_, options_.dynamic ? ": the scale is not the reason, the model itself makes them" : ", which is fixed",
         name_settings("; use a smaller --lr, --clip-norm or --precision bf16, and look for a division by zero or a logarithm of zero"),
         options_.dynamic ? "" : ", or let the scale be dynamic");
  }
  if (options_.dynamic && is_usable(scale_ * options_.backoff)) scale_ *= options_.backoff;
}

Json LossScaler::state() const {
  return Json{{"scale", scale_}, {"clean_steps", clean_steps_}, {"skipped_in_a_row", skipped_in_a_row_}, {"skipped_steps", skipped_steps_}};
}

void LossScaler::load(const Json& state) {
  const auto number = [&](const char* name) {
    if (!state.is_object() || !state.contains(name) || !state[name].is_number())
      fail(ErrorCode::kBadInput, "loss scale: the saved state has no number '", name, "'");
    return state[name].get<double>();
  };
  const auto count = [&](const char* name) {
    const double value = number(name);
    if (!(value >= 0 && value < 9e15)) fail(ErrorCode::kBadInput, "loss scale: the saved state has ", name, " = ", value);
    return static_cast<int64_t>(value);
  };
  const double scale = number("scale");
  if (!is_usable(scale)) fail(ErrorCode::kBadInput, "loss scale: the saved state has scale = ", scale);
  const int64_t clean_steps = count("clean_steps"), in_a_row = count("skipped_in_a_row"), skipped = count("skipped_steps");
  if (options_.dynamic) scale_ = scale;
  clean_steps_ = clean_steps, skipped_in_a_row_ = in_a_row, skipped_steps_ = skipped;
}

}  // namespace cohort
