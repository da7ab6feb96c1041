#pragma once
// The noisy quadratic model (Zhang et al., 2019, 1907.04164, section 3) as a workload whose steps to a goal are known exactly.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "cohort/study/search/trial_runner.h"
#include "cohort/study/spec/spec.h"

namespace cohort::study {

/// Loss 1/2 sum h_i x_i^2 with h_i = i^-curvature_power, gradient noise of variance noise x h_i / B, start E[x_i^2] = start.
struct NoisyQuadratic {
  int64_t num_dimensions = 1000;
  double curvature_power = 1, noise = 1, start = 1;
  double averaging = 0;  ///< Exponential moving average of the weights with this decay; 0: none.
  bool sampled = false;  ///< Draws the noise (from the trial's seed) in place of taking its expectation.
};
/// `noisy-quadratic[:dimensions=,power=,noise=,start=,averaging=,sampled=0|1]`. Error(kBadInput).
NoisyQuadratic parse_noisy_quadratic(const std::string& data);

/// Expected loss after `steps` updates: the recursion of means and second moments, exact. optimizer: sgd, momentum (heavy ball) or
/// nesterov. Time grows with the logarithm of `steps`. `sampled` is not looked at.
double expected_loss(const NoisyQuadratic& model, const std::string& optimizer, double learning_rate, double momentum, double batch_size,
                     int64_t steps);
/// For plain SGD in closed form, without a recursion. Error(kBadInput) where the model averages its weights.
double expected_loss_sgd(const NoisyQuadratic& model, double learning_rate, double batch_size, double steps);

/// The least steps after which the expected loss is below `goal`, over all constant learning rates: what a study with endless trials and
/// an evaluation at every step would find (nearly: the learning rate is searched on a grid that is refined to 0.1 %). None where 2^22 steps
/// do not get there.
struct QuadraticOptimum {
  double learning_rate = 0;
  int64_t steps = 0;
};
std::optional<QuadraticOptimum> fewest_steps(const NoisyQuadratic& model, const std::string& optimizer, double momentum, double batch_size,
                                             double goal);
/// The same at one learning rate.
std::optional<int64_t> steps_to_loss(const NoisyQuadratic& model, const std::string& optimizer, double learning_rate, double momentum,
                                     double batch_size, double goal);

/// Trials of this model; val_loss is its loss (the expectation, or of the sampled weights). A trial's parameters: learning_rate, momentum
/// (0.9 where it is missing), weight_decay, and those of the learning-rate schedule. Error(kBadInput) for another optimizer.
std::unique_ptr<TrialRunner> make_noisy_quadratic_runner(const StudySpec& spec);

}  // namespace cohort::study
