// The order, bounds and classification of the trials of a batch size: the censoring rule, the exact queue, successive halving.
#include "cohort/study/search/batch_queue.h"

#include <algorithm>
#include <cmath>

#include "cohort/base/fail.h"

namespace cohort::study {
namespace {

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
    else if (is_better(goal.value, same->value, goal.metric)) *same = goal;
  }
}

void CensorRule::note(const Measurement& measurement, ReachedSteps& own) const {
  for (size_t i = 0; i < goals_.size(); ++i)
    if (own[i] == kNever && goals_[i].reached(measurement)) own[i] = measurement.step;
}

int64_t CensorRule::step_limit(const ReachedSteps& best, const ReachedSteps& own) const {
  if (!enabled_ || goals_.empty()) return kNever;
  int64_t last = 0;
  for (size_t i = 0; i < goals_.size(); ++i) last = std::max(last, times(margin_, std::min(best[i], own[i])));
  return last;
}

int64_t CensorRule::step_limit(const TrialBound& bound, const ReachedSteps& own) const {
  return std::min(bound.stop_at, step_limit(bound.best, own));
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

BatchQueue::BatchQueue(const StudySpec& spec, const BatchSpec& batch)
    : rule_(spec), num_trials_(batch.num_trials), max_draws_(spec.max_draws_factor * batch.num_trials), best_(rule_.none_reached()) {}

std::unique_ptr<BatchQueue> make_batch_queue(const StudySpec& spec, const BatchSpec& batch) {
  if (spec.halving) return std::make_unique<HalvingQueue>(spec, batch);
  return std::make_unique<TrialQueue>(spec, batch);
}

// The exact queue: incumbent censoring that gives the same trials, bit for bit, in whatever order they end.
//
// Steps to result are a minimum over trials, so a trial that has run longer than the best one cannot change it. The best trial so far would
// depend on timing; the queue uses the best of those with LOWER ids:
//   c_i = margin x the fewest steps to the goal among trials below i that count,
// and trial i is kept up to its first evaluation at or after c_i. While lower ids still run, c_i is bounded from above by those that have
// ended, so a trial may overrun but never falls short. When all lower ids are decided it is cut at c_i and classified:
//   evaluated at or after c_i: what came later is dropped (a divergence too); CENSORED, or COMPLETE where its own goal ended it;
//   diverged before: INFEASIBLE, which draws one more point; otherwise COMPLETE.
// Trials are decided in the order of their ids, the batch size is done with the num_trials-th that counts, and later ones are dropped.
// Difference: Shallue et al. (2019) run every trial to its budget. A trial that would have diverged after c_i counts here and not there.
namespace {

bool counts(TrialStatus status) { return status == TrialStatus::kComplete || status == TrialStatus::kCensored; }

void take_minimum(ReachedSteps& best, const ReachedSteps& other) {
  for (size_t i = 0; i < best.size(); ++i) best[i] = std::min(best[i], other[i]);
}

}  // namespace

TrialQueue::TrialQueue(const StudySpec& spec, const BatchSpec& batch) : BatchQueue(spec, batch), train_steps_(batch.train_steps) {}

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

/// Whether trial `id` may be stored: fewer than num_trials with lower ids count or may still count.
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
  // Trials that had ended before a restart are skipped.
  while (ended_.contains(first_undrawn_)) ++first_undrawn_;
  if (!needed(first_undrawn_)) return std::nullopt;
  running_.insert(first_undrawn_);
  return first_undrawn_++;
}

TrialBound TrialQueue::bound(int64_t id) const {
  // A lower trial that is infeasible so far may still be cut before it diverged, and count: then the bound decreases later.
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
    if (step < rule_.step_limit(best_, own)) continue;
    const bool by_itself = step >= train_steps_ || step >= rule_.step_limit(rule_.none_reached(), own);
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

// Successive halving, BIASED: it judges trials by their early curves, so that slow starters (low learning rates, high momentum, late
// decay), which are often the best at the end, are cut first: short-horizon bias (Wu et al., 2018, 1803.02021). Its results carry a
// warning.
//
// Rungs are at budget / 9, budget / 3 and the budget. The first num_trials that do not diverge before the first rung are compared there by
// the first goal's metric; the best third (rounded up, ties to the lower id) continues, the others are CENSORED where they are; likewise at
// the second rung. A trial that reaches its goal stops as in TrialQueue, and is not compared. One that diverges after the first rung is
// INFEASIBLE and is not replaced. All trials of the batch size are decided at once, at its end.
// Source: Jamieson and Talwalkar, 2016, 1502.07943, one bracket.
HalvingQueue::HalvingQueue(const StudySpec& spec, const BatchSpec& batch)
    : BatchQueue(spec, batch),
      metric_(spec.goals.empty() ? kValLoss : spec.goals.front().metric),
      rungs_{(batch.train_steps + 8) / 9, (batch.train_steps + 2) / 3, batch.train_steps} {}

void HalvingQueue::restore(const TrialSummary& stored) {
  if (stored.id != num_taken_)
    fail(ErrorCode::kFailed, "the store holds trial ", stored.id, " without trial ", num_taken_, ": another program wrote it");
  ++num_taken_;
  num_kept_ += stored.status != TrialStatus::kInfeasible;
  take_minimum(best_, stored.reached);
  stored_.insert(stored.id);
  ended_[stored.id] = stored;
  taken_ = plan().done && static_cast<int64_t>(plan().members.size()) <= num_taken_;
}

/// Whether the trial was evaluated at the rung or beyond it.
bool HalvingQueue::at_rung(const TrialSummary& summary, int rung) const {
  return !summary.evaluated.empty() && summary.evaluated.back() >= rungs_[static_cast<size_t>(rung)];
}

/// Whether its goal ended the trial; the runner reports such a trial as censored, because it was asked to stop.
bool HalvingQueue::ended_by_goal(const TrialSummary& summary) const {
  return summary.status != TrialStatus::kInfeasible && summary.steps >= rule_.step_limit(rule_.none_reached(), summary.reached);
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
    take_minimum(best_, trial.reached);
  }
  taken_ = true;
  ended_.clear();
  return finals;
}

}  // namespace cohort::study
