// --remedy staleness: the rate of a push is divided by how late it is. Source: Zhang, Gupta, Lian, Liu 2016, "Staleness-aware async-SGD for
// distributed deep learning" (arXiv 1511.05950): rate / tau, tau the staleness in updates. Where we differ: there every update has the
// weight of a whole step; here a push of b of B samples has the weight b / B already, which for N even workers is the division by N (and
// their tau is N - 1 on average). So tau is counted in steps here, and what is less than one step late is not slowed further. Costs
// nothing.
#include <algorithm>

#include "cohort/train/async/remedies/remedies.h"

namespace cohort::remedies {
namespace {

class StalenessRate : public RemedyRule {
 public:
  double rate_factor(const StalePush& push) const override { return 1 / std::max(1.0, push.late_steps); }
};

}  // namespace

std::unique_ptr<RemedyRule> staleness_rate(double /*value*/) { return std::make_unique<StalenessRate>(); }

}  // namespace cohort::remedies
