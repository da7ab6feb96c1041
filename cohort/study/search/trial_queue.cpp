#include "cohort/study/search/trial_queue.h"

#include <algorithm>

#include "cohort/base/fail.h"

namespace cohort::study {
namespace {

bool counts(TrialStatus status) { return status == TrialStatus::kComplete || status == TrialStatus::kCensored; }

void take_minimum(ReachedSteps& best, const ReachedSteps& other) {
  for (size_t i = 0; i < best.size(); ++i) best[i] = std::min(best[i], other[i]);
}

}  // namespace

TrialQueue::TrialQueue(const StudySpec& spec, const BatchSpec& batch)
    : rule_(spec),
      num_trials_(batch.num_trials),
      train_steps_(batch.train_steps),
      max_draws_(spec.max_draws_factor * batch.num_trials),
      best_(rule_.none_reached()) {}

bool TrialQueue::done() const { return num_kept_ >= num_trials_ || first_undecided_ >= max_draws_; }

int64_t TrialQueue::num_left() const { return done() ? 0 : std::min(num_trials_ - num_kept_, max_draws_ - first_undecided_); }

void TrialQueue::count(const FinalTrial& trial, const ReachedSteps& reached) {
  first_undecided_ = trial.id + 1;
  first_undrawn_ = std::max(first_undrawn_, first_undecided_);
  if (!counts(trial.status)) return;
  ++num_kept_;
  ReachedSteps within = reached;
  for (int64_t& step : within)
    if (step > trial.steps) step = kNever;
  take_minimum(best_, within);
}

void TrialQueue::restore(const TrialSummary& stored) {
  if (stored.id != first_undecided_)
    fail(ErrorCode::kFailed, "the store holds trial ", stored.id, " without trial ", first_undecided_, ": another program wrote it");
  count({stored.id, stored.status, stored.steps, stored.evaluated.size()}, stored.reached);
}

/// Whether trial `id` can be among those that are stored: fewer than num_trials below it count or still may.
bool TrialQueue::needed(int64_t id) const {
  if (done() || id >= max_draws_) return false;
  int64_t below = num_kept_ + static_cast<int64_t>(std::distance(running_.begin(), running_.lower_bound(id))) +
                  static_cast<int64_t>(std::distance(waiting_.begin(), waiting_.lower_bound(id)));
  for (const auto& [other, summary] : ended_) below += other < id && counts(summary.status);
  return below < num_trials_;
}

std::optional<int64_t> TrialQueue::next() {
  for (const int64_t id : waiting_) {
    if (!needed(id)) break;
    waiting_.erase(id);
    running_.insert(id);
    return id;
  }
  // Trials that had ended before a restart were drawn out of turn.
  while (ended_.contains(first_undrawn_)) ++first_undrawn_;
  if (!needed(first_undrawn_)) return std::nullopt;
  running_.insert(first_undrawn_);
  return first_undrawn_++;
}

TrialBound TrialQueue::bound(int64_t id) const {
  // A lower trial that is infeasible so far may yet be cut before it diverged and count: then the bound falls later.
  TrialBound bound{train_steps_, best_};
  if (done()) bound.stop_at = 0;
  for (const auto& [other, summary] : ended_)
    if (other < id && counts(summary.status)) take_minimum(bound.best, summary.reached);
  return bound;
}

void TrialQueue::lost(int64_t id) {
  if (running_.erase(id) && !done()) waiting_.insert(id);
}

void TrialQueue::ended(TrialSummary summary) {
  running_.erase(summary.id);
  waiting_.erase(summary.id);
  if (done() || summary.id < first_undecided_) return;
  const int64_t id = summary.id;
  ended_.insert_or_assign(id, std::move(summary));
}

FinalTrial TrialQueue::classify(const TrialSummary& summary) const {
  ReachedSteps own = rule_.none_reached();
  for (size_t i = 0; i < summary.evaluated.size(); ++i) {
    const int64_t step = summary.evaluated[i];
    for (size_t goal = 0; goal < own.size(); ++goal)
      if (summary.reached[goal] <= step) own[goal] = summary.reached[goal];
    if (step < rule_.wanted(best_, own)) continue;
    const bool by_itself = step >= train_steps_ || step >= rule_.wanted(rule_.none_reached(), own);
    return {summary.id, by_itself ? TrialStatus::kComplete : TrialStatus::kCensored, step, i + 1};
  }
  if (summary.status == TrialStatus::kCensored || summary.status == TrialStatus::kIncomplete)
    fail(ErrorCode::kFailed, "trial ", summary.id, " stopped at step ", summary.steps, ", before it could be censored; this is a defect");
  return {summary.id, summary.status, summary.steps, summary.evaluated.size()};
}

std::vector<FinalTrial> TrialQueue::take_final() {
  std::vector<FinalTrial> finals;
  while (!done() && ended_.contains(first_undecided_)) {
    const auto node = ended_.extract(first_undecided_);
    finals.push_back(classify(node.mapped()));
    count(finals.back(), node.mapped().reached);
  }
  if (done()) {
    ended_.clear();
    waiting_.clear();
  }
  return finals;
}

}  // namespace cohort::study
