// --remedy compensate[:LAMBDA]: the gradient is carried from the weights where it was computed to those where it is applied, to first order
// of its Taylor series, with lambda g g^T in place of the Hessian and of that the diagonal: g + lambda g * g * (w - w_pulled). Source:
// Zheng et al. 2017, "Asynchronous stochastic gradient descent with delay compensation" (arXiv 1609.08326), equation 10 with the constant
// lambda (DC-ASGD-c; 0.04 there). g is the mean over the push's samples. Costs the memory of the weights for each worker in flight, and one
// pass over the gradient.
#include <torch/csrc/autograd/grad_mode.h>

#include "cohort/train/async/remedies/remedies.h"

namespace cohort::remedies {
namespace {

class DelayCompensation : public RemedyRule {
 public:
  explicit DelayCompensation(double lambda) : lambda_(lambda) {}
  bool wants_backup() const override { return true; }
  void correct(StalePush& push) const override {
    if (push.staleness == 0) return;
    at::NoGradGuard no_grad;
    for (size_t i = 0; i < push.gradients.size(); ++i) {
      at::Tensor& gradient = push.gradients[i];
      if (!gradient.defined()) continue;
      // The gradient here is a x the mean's, so lambda g^2 is lambda / a x its square.
      const at::Tensor flat = gradient.view({-1});
      flat.add_(flat.square().mul_(push.weights[i] - push.backup[i]), lambda_ / push.weight);
    }
  }

 private:
  double lambda_;
};

}  // namespace

std::unique_ptr<RemedyRule> delay_compensation(double value) { return std::make_unique<DelayCompensation>(value); }

}  // namespace cohort::remedies
