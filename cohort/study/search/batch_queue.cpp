#include "cohort/study/search/batch_queue.h"

#include <algorithm>
#include <cmath>

#include "cohort/study/search/halving.h"
#include "cohort/study/search/trial_queue.h"

namespace cohort::study {
namespace {

bool stricter(const GoalSpec& a, const GoalSpec& b) { return higher_is_better(a.metric) ? a.value > b.value : a.value < b.value; }

int64_t times(double margin, int64_t steps) {
  if (steps == kNever) return kNever;
  const double product = std::ceil(margin * static_cast<double>(steps));
  return product < 9e18 ? static_cast<int64_t>(product) : kNever;
}

}  // namespace

CensorRule::CensorRule(const StudySpec& spec) : margin_(spec.censor_margin), enabled_(spec.censor) {
  for (const GoalSpec& goal : spec.goals) {
    const auto same = std::find_if(goals_.begin(), goals_.end(), [&](const GoalSpec& other) { return other.metric == goal.metric; });
    if (same == goals_.end()) goals_.push_back(goal);
    else if (stricter(goal, *same)) *same = goal;
  }
}

void CensorRule::note(const Measurement& measurement, ReachedSteps& own) const {
  for (size_t i = 0; i < goals_.size(); ++i)
    if (own[i] == kNever && goals_[i].reached(measurement)) own[i] = measurement.step;
}

int64_t CensorRule::wanted(const ReachedSteps& best, const ReachedSteps& own) const {
  if (!enabled_ || goals_.empty()) return kNever;
  int64_t last = 0;
  for (size_t i = 0; i < goals_.size(); ++i) last = std::max(last, times(margin_, std::min(best[i], own[i])));
  return last;
}

int64_t CensorRule::wanted(const TrialBound& bound, const ReachedSteps& own) const {
  return std::min(bound.stop_at, wanted(bound.best, own));
}

TrialSummary summarise(const Trial& trial, const CensorRule& rule, Metric metric) {
  TrialSummary summary{trial.id, trial.status, trial.steps, rule.none_reached(), {}, {}};
  for (const Measurement& measurement : trial.measurements) {
    rule.note(measurement, summary.reached);
    summary.evaluated.push_back(measurement.step);
    summary.values.push_back(measurement.values[metric]);
  }
  return summary;
}

std::unique_ptr<BatchQueue> make_batch_queue(const StudySpec& spec, const BatchSpec& batch) {
  if (spec.halving) return std::make_unique<HalvingQueue>(spec, batch);
  return std::make_unique<TrialQueue>(spec, batch);
}

}  // namespace cohort::study
