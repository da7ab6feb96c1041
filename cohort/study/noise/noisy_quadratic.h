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
  bool sampled = false;  ///< Samples the noise (from the trial's seed) instead of taking its expectation.
};
/// `noisy-quadratic[:dimensions=,power=,noise=,start=,averaging=,sampled=0|1]`. Error(kBadInput).
NoisyQuadratic parse_noisy_quadratic(const std::string& data);

/// Runs trials of this model; val_loss is its loss (the expectation, or that of the sampled weights). A trial's parameters: learning_rate,
/// momentum (0.9 where it is missing), weight_decay, and those of the learning-rate schedule. Error(kBadInput) for another optimizer.
std::unique_ptr<TrialRunner> make_noisy_quadratic_runner(const StudySpec& spec);

// The weights during training: their exact second moments, or one sampled path.

/// The update rule without the learning rate.
struct QuadraticRule {
  bool nesterov = false;
  double momentum = 0;      ///< 0: plain SGD.
  double weight_decay = 0;  ///< Added to every curvature in the gradient, not in the loss.
  double batch_size = 1;
};
/// `optimizer` is sgd, momentum or nesterov. Error(kBadInput) for others, and for values out of range.
QuadraticRule quadratic_rule(const std::string& optimizer, double momentum, double batch_size, double weight_decay = 0);

/// Used by one thread.
class QuadraticState {
 public:
  virtual ~QuadraticState() = default;
  virtual void advance(int64_t steps, double learning_rate) = 0;
  /// The loss of the weights, or of their moving average where the model has one. Not finite, or huge, after a divergence.
  virtual double loss() const = 0;
  /// Advances to the last step before the loss falls below `goal` and returns the number of steps; none where 2^max_doublings steps do not
  /// reach it. This is the first crossing where the loss decreases steadily. Error(kBadInput) for sampled paths.
  virtual std::optional<int64_t> advance_to(double goal, double learning_rate, int max_doublings) = 0;
};

/// `model.sampled` selects the kind of state; a sampled path is a pure function of `seed`.
std::unique_ptr<QuadraticState> make_quadratic_state(const NoisyQuadratic& model, const QuadraticRule& rule, uint64_t seed);

}  // namespace cohort::study
