#include "cohort/job/update_rule.h"
#include "cohort/job/learning_rate.h"

#include <array>
#include <map>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/setting_name.h"

namespace cohort {

std::vector<std::string> UpdateRule::slots() const {
  switch (kind) {
    case Kind::kSgd:
      return {};
    case Kind::kMomentum:
    case Kind::kNesterov:
      return {"momentum"};
    case Kind::kAdam:
    case Kind::kAdamW:
      break;
  }
  return {"exp_avg", "exp_avg_sq"};
}

UpdateRule::Kind optimizer_kind(const std::string& name) {
  static const std::map<std::string, UpdateRule::Kind> kinds = {{"sgd", UpdateRule::Kind::kSgd},
                                                                {"momentum", UpdateRule::Kind::kMomentum},
                                                                {"nesterov", UpdateRule::Kind::kNesterov},
                                                                {"adam", UpdateRule::Kind::kAdam},
                                                                {"adamw", UpdateRule::Kind::kAdamW}};
  const auto kind = kinds.find(name);
  if (kind == kinds.end())
    fail(ErrorCode::kBadInput, name_settings("--optimizer: no optimizer '"), name, "'; there are: sgd momentum nesterov adam adamw");
  return kind->second;
}

UpdateRule update_rule(const Config& config) {
  return {optimizer_kind(config.optimizer), config.momentum, config.beta1, config.beta2, config.eps, effective_weight_decay(config)};
}

}  // namespace cohort
