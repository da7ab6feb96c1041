#pragma once
// What is done against stale gradients: one file each in this folder, a row of the table in remedies.cpp.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "cohort/job/remedy.h"

namespace cohort {

/// A push before it is applied.
struct StalePush {
  int64_t staleness = 0;                   ///< Pushes since its pull,
  double late_steps = 0;                   ///< and steps.
  double weight = 1;                       ///< The part of a step that it is.
  std::vector<at::Tensor>& gradients;      ///< Of the mean over its samples times the weight; a remedy may change them.
  const std::vector<at::Tensor>& weights;  ///< Now,
  const std::vector<at::Tensor>& backup;   ///< and when it was pulled, where wants_backup().
};

/// A change of weights of a worker that trained by itself, before it is merged.
struct StaleChange {
  int64_t staleness = 0;
  std::vector<at::Tensor>& changes;         ///< One a parameter, flat; a remedy may change them.
  const std::vector<at::Tensor>& momentum;  ///< Of the outer optimizer, v = decay v + outer gradient.
  double decay = 0;
};

class RemedyRule {
 public:
  virtual ~RemedyRule() = default;
  virtual bool drops(const StalePush& /*push*/) const { return false; }
  virtual double rate_factor(const StalePush& /*push*/) const { return 1; }
  virtual void correct(StalePush& /*push*/) const {}
  virtual void correct_change(StaleChange& /*late*/) const {}
  virtual bool wants_backup() const { return false; }
  /// What a worker is served is moved by -rate x this x momentum; `late_steps`: of the pushes lately, in the mean.
  virtual double momentum_ahead(double /*momentum*/, double /*late_steps*/) const { return 0; }
};

/// Null for none.
std::unique_ptr<RemedyRule> make_remedy(const Remedy& remedy);

namespace remedies {
std::unique_ptr<RemedyRule> constant_rate(double value);
std::unique_ptr<RemedyRule> staleness_rate(double value);
std::unique_ptr<RemedyRule> delay_compensation(double value);
std::unique_ptr<RemedyRule> momentum_lookahead(double value);
std::unique_ptr<RemedyRule> drop_late(double value);
std::unique_ptr<RemedyRule> heloco(double value);
}  // namespace remedies

}  // namespace cohort
