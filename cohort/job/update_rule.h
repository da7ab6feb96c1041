#pragma once
// The optimizer and its hyperparameters. Torch-free.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/job/config.h"

namespace cohort {

struct COHORT_API UpdateRule {
  enum class Kind { kSgd, kMomentum, kNesterov, kAdam, kAdamW };
  Kind kind = Kind::kSgd;
  double momentum = 0.9, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;

  /// Names of the state arrays, each of the parameter's size: none, {"momentum"} or {"exp_avg", "exp_avg_sq"}.
  std::vector<std::string> slots() const;
  bool counts_updates() const { return kind == Kind::kAdam || kind == Kind::kAdamW; }
};

/// The kind of a value of --optimizer. Error(kBadInput) for an unknown one.
COHORT_API UpdateRule::Kind optimizer_kind(const std::string& name);
/// The optimizer of a configuration.
COHORT_API UpdateRule update_rule(const Config& config);

}  // namespace cohort
