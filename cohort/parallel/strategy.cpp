#include "cohort/parallel/strategy.h"

#include <cmath>

namespace cohort {

StepOutcome judge_gradient(double norm_squared, const StepOptions& options, double* factor) {
  StepOutcome outcome;
  if (options.add_other_parts) norm_squared = options.add_other_parts(norm_squared);
  outcome.skipped = options.check_finite && !std::isfinite(norm_squared);
  if (options.clip_norm <= 0) return outcome;
  outcome.gradient_norm = std::sqrt(norm_squared) * std::abs(*factor);
  if (outcome.gradient_norm > options.clip_norm) *factor *= options.clip_norm / outcome.gradient_norm;
  return outcome;
}

}  // namespace cohort
