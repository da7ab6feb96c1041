// --remedy heloco: a change of weights that comes late is turned towards the outer momentum where it goes against it or across. For each
// parameter, with d the late worker's outer gradient (minus its change), m the outer momentum as a mean (1 - mu) v, c the cosine between
// them, and confidence = |d| / (|d| + kappa |m|):
//   c >= c_ok        as it is
//   0 <= c < c_ok    turned: lambda = min(k_d (1 - c) confidence, 1), along (1 - lambda) d/|d| + lambda m/|m|, as long as before
//   c < 0            shrunk along m: d - beta c |d| m/|m|, beta = min(k_s (-c) confidence, beta_max)
// Source: Al Asif et al. 2026 (HeLoCo, arXiv 2606.00271), by a summary that has the formulas and not the five constants: those here are
// ours. Differences: who is not late is left as it is, so with nobody late nothing changes; a block is a parameter; late changes are merged
// with those of others by samples, and there is no further weight for the delay. Costs two passes over each late change.
#include <ATen/ops/dot.h>
#include <ATen/ops/norm.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "cohort/train/async/remedies/remedies.h"

namespace cohort::remedies {
namespace {

constexpr double kKeptCosine = 0.2;  // c_ok
constexpr double kShrink = 1;        // k_s
constexpr double kMostShrink = 1;    // beta_max: all of what goes against the momentum
constexpr double kTurn = 0.5;        // k_d
constexpr double kMomentumPart = 1;  // kappa

class HeLoCo : public RemedyRule {
 public:
  void correct_change(StaleChange& late) const override {
    if (late.staleness == 0) return;
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < late.changes.size(); ++i) correct(late.changes[i], late.momentum[i], late.decay);
  }

 private:
  static void correct(const at::Tensor& change, const at::Tensor& momentum, double decay) {
    const double size = change.norm().item<double>(), sum = momentum.norm().item<double>();
    if (!(size > 0) || !(sum > 0)) return;
    const double cosine = -at::dot(change, momentum).item<double>() / (size * sum);  // The change is minus the outer gradient.
    if (cosine >= kKeptCosine) return;
    const double confidence = size / (size + kMomentumPart * (1 - decay) * sum);
    if (cosine < 0) {
      const double beta = std::min(-kShrink * cosine * confidence, kMostShrink);
      change.add_(momentum, beta * cosine * size / sum);
      return;
    }
    const double turn = std::min(kTurn * (1 - cosine) * confidence, 1.0);
    const double length = std::sqrt((1 - turn) * (1 - turn) + turn * turn + 2 * turn * (1 - turn) * cosine);
    change.mul_((1 - turn) / length).sub_(momentum, size * turn / (length * sum));
  }
};

}  // namespace

std::unique_ptr<RemedyRule> heloco(double /*value*/) { return std::make_unique<HeLoCo>(); }

}  // namespace cohort::remedies
