// --remedy drop:STEPS: a push that is more than STEPS steps late is not applied; its ticket goes to the next worker that is free, so that
// each sample still counts once an epoch, and the work is done twice. With 0 only pushes count before which nothing was applied since their
// pull. Some push always counts: the first after any. Costs the work that is dropped.
#include "cohort/train/async/remedies/remedies.h"

namespace cohort::remedies {
namespace {

class DropLate : public RemedyRule {
 public:
  explicit DropLate(double most_steps) : most_steps_(most_steps) {}
  bool drops(const StalePush& push) const override { return push.late_steps > most_steps_; }

 private:
  double most_steps_;
};

}  // namespace

std::unique_ptr<RemedyRule> drop_late(double value) { return std::make_unique<DropLate>(value); }

}  // namespace cohort::remedies
