#include "cohort/study/search/halving.h"

#include <algorithm>
#include <cmath>

#include "cohort/base/fail.h"

namespace cohort::study {

HalvingQueue::HalvingQueue(const StudySpec& spec, const BatchSpec& batch)
    : rule_(spec),
      metric_(spec.goals.empty() ? kValLoss : spec.goals.front().metric),
      num_trials_(batch.num_trials),
      max_draws_(spec.max_draws_factor * batch.num_trials),
      rungs_{(batch.train_steps + 8) / 9, (batch.train_steps + 2) / 3, batch.train_steps},
      best_(rule_.none_reached()) {}

void HalvingQueue::restore(const TrialSummary& stored) {
  if (stored.id != num_taken_)
    fail(ErrorCode::kFailed, "the store holds trial ", stored.id, " without trial ", num_taken_, ": another program wrote it");
  ++num_taken_;
  num_kept_ += stored.status != TrialStatus::kInfeasible;
  for (size_t i = 0; i < best_.size(); ++i) best_[i] = std::min(best_[i], stored.reached[i]);
  stored_.insert(stored.id);
  ended_[stored.id] = stored;
  taken_ = plan().done && static_cast<int64_t>(plan().members.size()) <= num_taken_;
}

/// It was evaluated at the rung or beyond it.
bool HalvingQueue::at_rung(const TrialSummary& summary, int rung) const {
  return !summary.evaluated.empty() && summary.evaluated.back() >= rungs_[static_cast<size_t>(rung)];
}

/// As in the exact queue; the runner calls it censored, because it was asked to stop.
bool HalvingQueue::ended_by_goal(const TrialSummary& summary) const {
  return summary.status != TrialStatus::kInfeasible && summary.steps >= rule_.wanted(rule_.none_reached(), summary.reached);
}

/// The best third of `members` by their values at the rung.
std::set<int64_t> HalvingQueue::survivors(const std::set<int64_t>& members, int rung) const {
  std::vector<std::pair<double, int64_t>> order;
  for (const int64_t id : members) {
    const TrialSummary& summary = ended_.at(id);
    const auto at = std::lower_bound(summary.evaluated.begin(), summary.evaluated.end(), rungs_[static_cast<size_t>(rung)]);
    double value = summary.values[static_cast<size_t>(at - summary.evaluated.begin())];
    if (higher_is_better(metric_)) value = -value;
    order.emplace_back(std::isnan(value) ? std::numeric_limits<double>::infinity() : value, id);
  }
  std::sort(order.begin(), order.end());
  order.resize((order.size() + 2) / 3);
  std::set<int64_t> kept;
  for (const auto& [value, id] : order) kept.insert(id);
  return kept;
}

HalvingQueue::Plan HalvingQueue::plan() const {
  Plan plan;
  std::set<int64_t> alive;
  int64_t feasible = 0;
  bool settled = true;
  for (int64_t id = 0; id < max_draws_ && feasible < num_trials_; ++id) {
    plan.members.insert(id);
    const auto found = ended_.find(id);
    if (found == ended_.end()) {
      plan.to_run[id] = rungs_[0];
      settled = false;
      ++feasible;  // Until it diverges.
      continue;
    }
    const TrialSummary& trial = found->second;
    if (trial.status == TrialStatus::kInfeasible && !at_rung(trial, 0)) continue;
    ++feasible;
    if (at_rung(trial, 0) && !ended_by_goal(trial)) alive.insert(id);
  }
  for (int rung = 0; settled && rung + 1 < kNumRungs; ++rung) {
    alive = survivors(alive, rung);
    std::set<int64_t> next;
    for (const int64_t id : alive) {
      const TrialSummary& trial = ended_.at(id);
      if (ended_by_goal(trial)) continue;
      if (at_rung(trial, rung + 1)) next.insert(id);
      else if (trial.status == TrialStatus::kCensored && !stored_.contains(id)) {
        plan.to_run[id] = rungs_[static_cast<size_t>(rung) + 1];
        settled = false;
      }
    }
    alive = std::move(next);
  }
  plan.done = settled;
  return plan;
}

std::optional<int64_t> HalvingQueue::next() {
  if (taken_) return std::nullopt;
  for (const auto& [id, step] : plan().to_run)
    if (running_.insert(id).second) return id;
  return std::nullopt;
}

TrialBound HalvingQueue::bound(int64_t id) const {
  const Plan now = plan();
  const auto found = now.to_run.find(id);
  return {taken_ || found == now.to_run.end() ? 0 : found->second, rule_.none_reached()};
}

void HalvingQueue::ended(TrialSummary summary) {
  running_.erase(summary.id);
  if (taken_ || stored_.contains(summary.id)) return;
  const int64_t id = summary.id;
  ended_.insert_or_assign(id, std::move(summary));
}

int64_t HalvingQueue::num_left() const { return taken_ ? 0 : std::max<int64_t>(1, static_cast<int64_t>(plan().to_run.size())); }

std::vector<FinalTrial> HalvingQueue::take_final() {
  std::vector<FinalTrial> finals;
  if (taken_) return finals;
  const Plan now = plan();
  if (!now.done) return finals;
  for (const int64_t id : now.members) {
    if (stored_.contains(id)) continue;
    const TrialSummary& trial = ended_.at(id);
    finals.push_back({id, ended_by_goal(trial) ? TrialStatus::kComplete : trial.status, trial.steps, trial.evaluated.size()});
    num_kept_ += finals.back().status != TrialStatus::kInfeasible;
    ++num_taken_;
    for (size_t i = 0; i < best_.size(); ++i) best_[i] = std::min(best_[i], trial.reached[i]);
  }
  taken_ = true;
  ended_.clear();
  return finals;
}

}  // namespace cohort::study
