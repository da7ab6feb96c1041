#pragma once
// The weights of a noisy quadratic as they train: their exact second moments, or one sampled path.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "cohort/study/noise/noisy_quadratic.h"

namespace cohort::study {

/// What makes one step, but for the learning rate.
struct QuadraticRule {
  bool nesterov = false;
  double momentum = 0;      ///< 0: plain SGD.
  double weight_decay = 0;  ///< Added to every curvature in the gradient, not in the loss.
  double batch_size = 1;
};
/// sgd, momentum or nesterov; Error(kBadInput) otherwise, or for numbers that make no sense.
QuadraticRule quadratic_rule(const std::string& optimizer, double momentum, double batch_size, double weight_decay = 0);

/// One thread.
class QuadraticState {
 public:
  virtual ~QuadraticState() = default;
  virtual void advance(int64_t steps, double learning_rate) = 0;
  /// Of the weights, or of their moving average where the model has one. Not finite, or huge, after a divergence.
  virtual double loss() const = 0;
  /// Advances to the last step before the loss falls below `goal` and returns the steps made; none where 2^max_doublings steps do not get
  /// there. The first crossing where the loss falls steadily. Error(kBadInput) for sampled paths.
  virtual std::optional<int64_t> advance_to(double goal, double learning_rate, int max_doublings) = 0;
};

/// `model.sampled` decides which; a sampled path is a pure function of `seed`.
std::unique_ptr<QuadraticState> make_quadratic_state(const NoisyQuadratic& model, const QuadraticRule& rule, uint64_t seed);

}  // namespace cohort::study
