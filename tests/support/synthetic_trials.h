#pragma once
// Synthetic trials for the tests of the queues: each has a curve that is a pure function of its id, and may diverge.

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/random.h"
#include "cohort/study/search/batch_queue.h"

namespace cohort::study {

/// What is asked of a study of one batch size.
inline StudySpec queue_spec(int64_t num_trials, int64_t train_steps, const std::vector<GoalSpec>& goals) {
  StudySpec spec;
  spec.data = "noisy-quadratic";
  spec.goals = goals;
  spec.batches = {{.batch_size = 8, .num_trials = num_trials, .train_steps = train_steps, .space = {}}};
  return spec;
}

/// A trial as a runner would give it, step by step.
class CurveTrial {
 public:
  CurveTrial(const StudySpec& spec, uint64_t world, int64_t id)
      : rule_(spec),
        evaluations_(spec.batches[0].train_steps < 2 ? std::vector<int64_t>{0, 1} : grid(spec.batches[0].train_steps)),
        own_(rule_.none_reached()) {
    trial_.id = id;
    rate_ = 0.0005 + 0.02 * unit_interval(random_bits(world, id, 1));
    rate_error_ = 0.0005 + 0.02 * unit_interval(random_bits(world, id, 2));
    if (unit_interval(random_bits(world, id, 3)) < 0.45)  // Mostly early.
      diverges_at_ = 1 + static_cast<int64_t>(std::pow(unit_interval(random_bits(world, id, 4)), 3) *
                                              static_cast<double>(spec.batches[0].train_steps));
  }

  /// Goes on to the next evaluation under this bound; true when it ended.
  bool advance(const TrialBound& bound) {
    const int64_t step = evaluations_[next_];
    if (diverges_at_ <= step) return end(TrialStatus::kInfeasible, diverges_at_);
    Measurement measurement;
    measurement.step = step;
    measurement.values[kValLoss] = 1 / (1 + rate_ * static_cast<double>(step));
    measurement.values[kValError] = 1 / (1 + rate_error_ * static_cast<double>(step));
    trial_.measurements.push_back(measurement);
    rule_.note(measurement, own_);
    if (++next_ == evaluations_.size()) return end(TrialStatus::kComplete, step);
    if (rule_.step_limit(bound, own_) <= step) return end(TrialStatus::kCensored, step);
    return false;
  }
  const Trial& trial() const { return trial_; }

 private:
  static std::vector<int64_t> grid(int64_t train_steps) {
    std::vector<int64_t> steps = {0};
    while (steps.back() < train_steps) steps.push_back(std::min(train_steps, std::max(steps.back() + 1, (steps.back() * 11 + 9) / 10)));
    return steps;
  }
  bool end(TrialStatus status, int64_t step) {
    trial_.status = status;
    trial_.steps = step;
    return true;
  }

  CensorRule rule_;
  std::vector<int64_t> evaluations_;
  ReachedSteps own_;
  Trial trial_;
  size_t next_ = 0;
  double rate_ = 0, rate_error_ = 0;
  int64_t diverges_at_ = kNever;
};

/// What a run of a queue leaves.
struct QueueRun {
  std::vector<Trial> stored;
  int64_t trained_steps = 0;  ///< With what was trained in vain.
  int num_restarts = 0;
};

/// Runs the study with `num_workers` that go on in a random order, each bound possibly told late. With `kill_probability` the process dies
/// at a random moment: running trials start over, ended ones that were not stored come back as files would bring them.
inline QueueRun run_queue(const StudySpec& spec, uint64_t world, int num_workers, uint64_t order_seed, double kill_probability = 0,
                          bool bounds_come_late = false) {
  std::mt19937_64 random(order_seed);
  const auto chance = [&] { return unit_interval(random()); };
  const CensorRule rule(spec);
  const Metric metric = spec.goals.front().metric;
  QueueRun run;
  std::map<int64_t, Trial> files;  // Ended, not stored.
  struct Running {
    CurveTrial trial;
    TrialBound told;
  };
  auto queue = make_batch_queue(spec, spec.batches[0]);
  std::map<int64_t, Running> running;
  const auto store_decided = [&] {
    for (const FinalTrial& decided : queue->take_final()) {
      Trial trial = files.at(decided.id);
      files.erase(decided.id);
      trial.status = decided.status;
      trial.steps = decided.steps;
      trial.measurements.resize(decided.num_measurements);
      run.stored.push_back(trial);
    }
  };
  for (int64_t turn = 0; !queue->done(); ++turn) {
    if (turn > 10'000'000) fail(ErrorCode::kFailed, "the queue never ends");
    if (chance() < kill_probability) {
      ++run.num_restarts;
      running.clear();
      queue = make_batch_queue(spec, spec.batches[0]);
      for (const Trial& trial : run.stored) queue->restore(summarise(trial, rule, metric));
      for (const auto& [id, trial] : files) queue->ended(summarise(trial, rule, metric));
      store_decided();
      continue;
    }
    while (static_cast<int>(running.size()) < num_workers) {
      const auto id = queue->next();
      if (!id) break;
      if (!running.emplace(*id, Running{CurveTrial(spec, world, *id), queue->bound(*id)}).second)
        fail(ErrorCode::kFailed, "trial ", *id, " was given out twice");
    }
    if (running.empty()) {
      if (queue->done()) break;
      fail(ErrorCode::kFailed, "nothing runs and the queue is not done");
    }
    auto one = std::next(running.begin(), static_cast<int64_t>(random() % running.size()));
    if (!bounds_come_late || chance() < 0.1) one->second.told = queue->bound(one->first);
    if (chance() < 0.002) {  // Its worker is lost.
      const int64_t id = one->first;
      running.erase(one);
      queue->lost(id);
      continue;
    }
    if (!one->second.trial.advance(one->second.told)) continue;
    const Trial trial = one->second.trial.trial();
    run.trained_steps += trial.steps;
    running.erase(one);
    if (trial.status != TrialStatus::kCensored || queue->bound(trial.id).stop_at != 0) files[trial.id] = trial;
    queue->ended(summarise(trial, rule, metric));
    store_decided();
  }
  return run;
}

inline bool equal_trials(const std::vector<Trial>& a, const std::vector<Trial>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].id != b[i].id || a[i].status != b[i].status || a[i].steps != b[i].steps) return false;
    if (a[i].measurements.size() != b[i].measurements.size()) return false;
    for (size_t k = 0; k < a[i].measurements.size(); ++k) {
      const Measurement &x = a[i].measurements[k], &y = b[i].measurements[k];
      if (x.step != y.step || x.values[kValLoss] != y.values[kValLoss] || x.values[kValError] != y.values[kValError]) return false;
    }
  }
  return true;
}

}  // namespace cohort::study
