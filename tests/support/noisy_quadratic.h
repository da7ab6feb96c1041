#pragma once
// For tests: what is known of the noisy quadratic model without running a trial. study/noise/noisy_quadratic.cpp has the recursion.
//
// Plain SGD in closed form. With r = (1 - lr h)^2 the second moment of a weight is
//   E[x_t^2] = r^t start + lr^2 (noise h / B) (1 - r^t) / (1 - r),
// and the expected loss half the sum of h E[x_t^2].
//
// Source: Zhang et al., 2019, 1907.04164, equation 3. Difference: the start is random with mean 0 and variance `start` (theirs: fixed 1),
// which has the same expected loss for plain SGD.

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

#include "cohort/base/fail.h"
#include "cohort/study/noise/noisy_quadratic.h"

namespace cohort::study {

inline NoisyQuadratic expectation_of(NoisyQuadratic model) {
  model.sampled = false;
  return model;
}

/// Expected loss after `steps` updates: the recursion of means and second moments, exact. optimizer: sgd, momentum (heavy ball) or
/// nesterov. Time grows with the logarithm of `steps`. `sampled` is not looked at.
inline double expected_loss(const NoisyQuadratic& model, const std::string& optimizer, double learning_rate, double momentum,
                            double batch_size, int64_t steps) {
  const auto state = make_quadratic_state(expectation_of(model), quadratic_rule(optimizer, momentum, batch_size), 0);
  state->advance(steps, learning_rate);
  return state->loss();
}

/// For plain SGD in closed form, without a recursion. Error(kBadInput) where the model averages its weights.
inline double expected_loss_sgd(const NoisyQuadratic& model, double learning_rate, double batch_size, double steps) {
  if (model.averaging > 0) fail(ErrorCode::kBadInput, "noisy-quadratic: no closed form with averaging=", model.averaging);
  double sum = 0;
  for (int64_t i = 1; i <= model.num_dimensions; ++i) {
    const double h = std::pow(static_cast<double>(i), -model.curvature_power), rate = learning_rate * h;
    const double r = (1 - rate) * (1 - rate), one_minus_r = rate * (2 - rate), decayed = std::pow(r, steps);
    const double kicks = one_minus_r == 0 ? steps : (1 - decayed) / one_minus_r;  // Steps of noise that are still felt.
    sum += h * (decayed * model.start + learning_rate * learning_rate * model.noise * h / batch_size * kicks);
  }
  return sum / 2;
}

/// The least steps after which the expected loss is below `goal` at this learning rate. None where 2^22 steps do not get there.
inline std::optional<int64_t> steps_to_loss(const NoisyQuadratic& model, const std::string& optimizer, double learning_rate,
                                            double momentum, double batch_size, double goal) {
  const auto state = make_quadratic_state(expectation_of(model), quadratic_rule(optimizer, momentum, batch_size), 0);
  if (state->loss() < goal) return 0;
  const std::optional<int64_t> before = state->advance_to(goal, learning_rate, 22);
  return before ? std::optional(*before + 1) : std::nullopt;
}

/// The same over all constant learning rates: what a study with endless trials and an evaluation at every step would find (nearly: the
/// learning rate is searched on a grid that is refined to 0.1 %).
struct QuadraticOptimum {
  double learning_rate = 0;
  int64_t steps = 0;
};
inline std::optional<QuadraticOptimum> fewest_steps(const NoisyQuadratic& model, const std::string& optimizer, double momentum,
                                                    double batch_size, double goal) {
  std::optional<QuadraticOptimum> best;
  // The largest curvature is 1: nothing is stable above 2 (1 + momentum). Ties go to the smaller rate.
  double low = 1e-6, high = 2 * (1 + quadratic_rule(optimizer, momentum, batch_size).momentum);
  for (int points = 40; high / low > 1.001; points = 12) {
    const double ratio = std::pow(high / low, 1.0 / points);
    for (int i = 0; i <= points; ++i) {
      const double rate = low * std::pow(ratio, i);
      const std::optional<int64_t> steps = steps_to_loss(model, optimizer, rate, momentum, batch_size, goal);
      if (steps && (!best || *steps < best->steps || (*steps == best->steps && rate < best->learning_rate))) best = {rate, *steps};
    }
    if (!best) return std::nullopt;
    low = best->learning_rate / ratio;
    high = best->learning_rate * ratio;
  }
  return best;
}

}  // namespace cohort::study
