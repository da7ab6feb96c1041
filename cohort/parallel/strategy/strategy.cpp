#include "cohort/parallel/strategy/strategy.h"

#include <cmath>

namespace cohort {

StepOutcome judge_gradient(double norm_squared, const StepOptions& options, double* factor) {
  StepOutcome outcome;
  if (options.add_other_parts) norm_squared = options.add_other_parts(norm_squared);
  outcome.skipped = options.check_finite && !std::isfinite(norm_squared);
  if (options.clip_norm <= 0) return outcome;
  outcome.gradient_norm = std::sqrt(norm_squared) * std::abs(*factor);
  // As LibTorch's and PyTorch's clip_grad_norm_(), the millionth included.
  const double scale = options.clip_norm / (outcome.gradient_norm + 1e-6);
  if (scale < 1) *factor *= scale;
  return outcome;
}

}  // namespace cohort
