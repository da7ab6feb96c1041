// --remedy lookahead: a worker is served the weights where momentum alone will have taken them when its push arrives, after as many steps
// as pushes were late lately (a running mean): w - rate (mu + mu^2 + ... + mu^late) v. Source: Hakimi et al. 2019, "Taming momentum in a
// distributed asynchronous environment" (DANA, arXiv 1907.11612). Where we differ: DANA keeps a momentum for each worker and looks ahead by
// the sum of all of them; here there is one momentum, of all pushes, whose decay is by the steps that went by, and the look-ahead is as far
// as the lateness that was measured. Costs two passes over the weights for each pull; no memory for each worker.
#include <cmath>

#include "cohort/train/async/remedies/remedies.h"

namespace cohort::remedies {
namespace {

class MomentumLookahead : public RemedyRule {
 public:
  double momentum_ahead(double momentum, double late_steps) const override {
    return momentum * (1 - std::pow(momentum, late_steps)) / (1 - momentum);
  }
};

}  // namespace

std::unique_ptr<RemedyRule> momentum_lookahead(double /*value*/) { return std::make_unique<MomentumLookahead>(); }

}  // namespace cohort::remedies
