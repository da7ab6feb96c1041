#pragma once
// The noisy quadratic model (Zhang et al., 2019, 1907.04164, section 3) as a workload whose steps to a goal are known exactly.

#include <cstdint>
#include <memory>
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

/// Trials of this model; val_loss is its loss (the expectation, or of the sampled weights). A trial's parameters: learning_rate, momentum
/// (0.9 where it is missing), weight_decay, and those of the learning-rate schedule. Error(kBadInput) for another optimizer.
std::unique_ptr<TrialRunner> make_noisy_quadratic_runner(const StudySpec& spec);

}  // namespace cohort::study
