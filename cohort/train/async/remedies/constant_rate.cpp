// --remedy rate:FACTOR: a smaller constant rate, the oldest remedy: all pushes are applied with FACTOR times the learning rate, whether
// they are late or not. Nothing else is known of the push, so fresh ones pay for late ones. Costs nothing.
#include "cohort/train/async/remedies/remedies.h"

namespace cohort::remedies {
namespace {

class ConstantRate : public RemedyRule {
 public:
  explicit ConstantRate(double factor) : factor_(factor) {}
  double rate_factor(const StalePush&) const override { return factor_; }

 private:
  double factor_;
};

}  // namespace

std::unique_ptr<RemedyRule> constant_rate(double value) { return std::make_unique<ConstantRate>(value); }

}  // namespace cohort::remedies
