// A trial runs a few steps of the training itself, without checkpoints and goal; weights and data start anew afterwards.
#include "cohort/tune/layout_trials.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "cohort/base/error.h"
#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/text.h"
#include "cohort/job/job.h"
#include "cohort/job/specs/devices.h"
#include "cohort/job/specs/injected_faults.h"
#include "cohort/plan/explain.h"
#include "cohort/run/train_job.h"
#include "cohort/train/train_result.h"
#include "cohort/world/launch.h"

namespace cohort {
namespace {

constexpr int kMostTrials = 3, kTrialSteps = 12;
constexpr double kWorthTrying =
    1.15;  // Factor of the best forecast; intervals that overlap beyond it are wide because the machine is noisy.
constexpr double kMostTrialSeconds = 20;

Config for_trial(const Config& config, int num_ranks) {
  Config trial = config;
  trial.steps = kTrialSteps, trial.epochs = 0;
  trial.goal.clear(), trial.checkpoint_every = -1;
  trial.inject = selected_faults(trial.inject, num_ranks, /*slow_only=*/true);
  trial.json = false, trial.quiet = true;
  return trial;
}

/// Measured seconds of a step, times the steps to the goal where that is the objective.
std::vector<double> measured_objectives(const std::vector<Choice>& tried, const std::vector<double>& seconds) {
  std::vector<double> out;
  for (size_t i = 0; i < tried.size(); ++i) out.push_back(seconds[i] * tried[i].plan.objective / tried[i].plan.forecast.step_seconds);
  return out;
}

std::vector<const RankedPlan*> plans_of(const std::vector<Choice>& choices) {
  std::vector<const RankedPlan*> out;
  for (const Choice& one : choices) out.push_back(&one.plan);
  return out;
}

}  // namespace

Config with_plan(const Config& config, const ModelProfile& profile, const RankedPlan& plan, const AutoGoal* goal) {
  Layout layout = layout_of(profile, plan);
  Config out = config;
  if (goal) {
    out.global_batch = plan.global_batch;
    out = goal->settle(out, layout);
  }
  if (out.workers > 0 || layout.num_ranks() > 1) out.workers = layout.num_ranks();
  out.device = first_devices(out.device, layout.num_ranks());  // The plan may use fewer ranks than requested.
  out.inject = selected_faults(out.inject, layout.num_ranks(), false);
  if (layout.accumulate > 0) out.accumulate = layout.accumulate;
  if (!layout.precision.empty()) out.precision = layout.precision;
  if (layout.shares == "equal") layout.shares.clear();
  layout.accumulate = 0, layout.precision.clear();
  out.layout = to_text(layout);
  return out;
}

std::string layout_text(const Choice& one) {
  Layout layout = layout_of(one.request.problem.profile, one.plan);
  layout.precision.clear();
  if (layout.shares == "equal") layout.shares.clear();
  if (layout.accumulate == 1) layout.accumulate = 0;
  const std::string text = layout.stages.empty() ? to_text(layout) : concat("stages side by side on ", layout.pp, " workers");
  return one.request.objective == Objective::kTimeToGoal ? concat(text, " with a batch of ", one.plan.global_batch) : text;
}

double tried_seconds(const Config& config, const DataSet& data) {
  const TemporaryFolder folder("cohort-trial");
  Config trial = for_trial(config, config.workers);
  trial.run = folder.path() + "/run";
  const std::string file = folder.path() + "/seconds";
  const Job job = resolve(trial, trial.workers);
  const int code = run_ranks({.num_ranks = trial.workers, .is_one_of_many = true}, [&](const World& world) {
    const TrainResult result = train(job, data, world, {.reports = false});
    if (world.rank == 0) write_file_atomically(file, concat(result.step_seconds));
    return result.interrupted ? static_cast<int>(ErrorCode::kInterrupted) : 0;
  });
  if (code == static_cast<int>(ErrorCode::kInterrupted)) fail(ErrorCode::kInterrupted, "interrupted while layouts were tried");
  if (code != 0) return std::numeric_limits<double>::infinity();
  return parse_number(read_small_file(file, 100)).value_or(std::numeric_limits<double>::infinity());
}

double tried_seconds_together(const Config& config, const DataSet& data, const World& world, Group& group) {
  std::string error;
  double seconds = std::numeric_limits<double>::infinity();
  bool interrupted = false;
  try {
    const Config trial = for_trial(config, world.size);
    const TrainResult result = train(resolve(trial, world.size, world.local_size == world.size), data, world, {.reports = false});
    seconds = result.step_seconds, interrupted = result.interrupted;
  } catch (const Error& failure) {
    if (failure.code() == ErrorCode::kInterrupted) throw;
    error = first_line(failure.what());
  }
  if (interrupted) fail(ErrorCode::kInterrupted, "interrupted while layouts were tried");
  for (const std::string& other : group.all_gather_text(error, "how a layout that was tried ended"))
    if (!other.empty()) return std::numeric_limits<double>::infinity();
  return seconds;
}

std::vector<Choice> plans_to_try(const std::vector<Choice>& choices) {
  std::vector<Choice> near, close;
  if (choices.empty()) return close;
  const double high = std::min(choices.front().plan.high, kWorthTrying * choices.front().plan.objective);
  for (const Choice& one : choices)
    if (one.plan.low <= high && one.plan.objective <= kWorthTrying * choices.front().plan.objective &&
        one.plan.forecast.step_seconds * kTrialSteps < kMostTrialSeconds)
      near.push_back(one);
  for (const size_t each : different_plans(plans_of(near), kMostTrials)) close.push_back(near[each]);
  return close;
}

const Choice* other_number_of_workers(const std::vector<Choice>& choices, const std::vector<Choice>& tried,
                                      const std::vector<double>& seconds) {
  const auto ranks = [](const Choice& one) { return layout_of(one.request.problem.profile, one.plan).num_ranks(); };
  const std::vector<double> costs = measured_objectives(tried, seconds);
  const double least = *std::min_element(costs.begin(), costs.end());
  const auto found = std::find_if(choices.begin(), choices.end(), [&](const Choice& one) {
    return one.plan.objective < least &&
           std::none_of(tried.begin(), tried.end(), [&](const Choice& other) { return ranks(other) == ranks(one); });
  });
  return found == choices.end() ? nullptr : &*found;
}

Winner winner_of(const std::vector<Choice>& tried, const std::vector<double>& seconds) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < tried.size(); ++i)
    parts.push_back(concat(layout_text(tried[i]), " ", std::isfinite(seconds[i]) ? human_seconds(seconds[i]) : std::string("failed"),
                           " (forecast ", human_seconds(tried[i].plan.forecast.step_seconds), ")"));
  const std::vector<double> costs = measured_objectives(tried, seconds);
  Winner out{.index = winner_of_trials(plans_of(tried), costs)};
  const auto least = std::min_element(costs.begin(), costs.end());
  if (std::isfinite(*least) && costs[out.index] > *least)
    parts.back() += concat("; within ", 100 * kNoiseFloor, " %, where two measurements of one layout may differ, the simplest is taken");
  out.sentence = concat("too close to tell by forecast, so each ran ", kTrialSteps, " steps: ", join(parts, "; "));
  return out;
}

// Choice of the trials. They are few and short, so they go to plans that can differ by more than the noise of a trial:
//
//   1. Plans that differ only in recompute, accumulation, micro-batches or the cut are of one kind; one of each kind is tried.
//   2. Among measured costs within kNoiseFloor of the least the simplest plan wins.
//   3. Differences of forecasts below kSame do not count: with_round_accumulate() prefers 4 to 5.
//
// Cost: two forecasts per plan. reasons_of() uses the same definition of a tie.

namespace {

constexpr double kSame = 1.01;

bool is_round(int pieces) { return (pieces & (pieces - 1)) == 0; }

auto complexity(const RankedPlan& plan) {
  const Layout& layout = plan.candidate.layout;
  const std::vector<bool>& again = plan.candidate.recompute;
  const int accumulate = std::max(1, layout.accumulate);
  return std::tuple(layout.num_ranks(), std::count(again.begin(), again.end(), true) > 0, layout.compress != "none", accumulate > 1,
                    !is_round(accumulate), layout.is_model_parallel(), layout.zero);
}

auto kind(const RankedPlan& plan) {
  const Layout& layout = plan.candidate.layout;
  return std::tuple(layout.dp, layout.pp, layout.tp, layout.zero, layout.pp > 1 ? layout.schedule : "", layout.precision, layout.compress,
                    layout.shares, layout.order, plan.global_batch);
}

}  // namespace

bool is_simpler(const RankedPlan& a, const RankedPlan& b) { return complexity(a) < complexity(b); }

RankedPlan with_round_accumulate(const PlanProblem& asked, RankedPlan plan) {
  const int now = plan.candidate.layout.accumulate;
  if (now < 2 || is_round(now)) return plan;
  PlanProblem problem = asked;
  problem.global_batch = plan.global_batch;
  int below = 1;
  while (2 * below < now) below *= 2;
  for (const int accumulate : {below, 2 * below}) {
    RankedPlan round = plan;
    round.candidate.layout.accumulate = accumulate;
    const Layout& layout = round.candidate.layout;
    if (int64_t{layout.dp} * accumulate * layout.microbatches > plan.global_batch) continue;
    round.forecast = forecast_step(problem, round.candidate);
    const double times = round.forecast.step_seconds / plan.forecast.step_seconds;
    if (!round.forecast.fits || times > kSame) continue;
    round.objective *= times, round.low *= times, round.high *= times;
    return round;
  }
  return plan;
}

std::vector<size_t> different_plans(const std::vector<const RankedPlan*>& plans, size_t most) {
  std::vector<size_t> out;
  for (size_t i = 0; i < plans.size(); ++i) {
    const auto same = std::find_if(out.begin(), out.end(), [&](size_t chosen) { return kind(*plans[chosen]) == kind(*plans[i]); });
    if (same == out.end()) out.push_back(i);
    else if (plans[i]->objective <= kSame * plans[*same]->objective && is_simpler(*plans[i], *plans[*same])) *same = i;
  }
  out.resize(std::min(out.size(), most));
  return out;
}

size_t winner_of_trials(const std::vector<const RankedPlan*>& plans, const std::vector<double>& costs) {
  const double least = *std::min_element(costs.begin(), costs.end());
  size_t winner = static_cast<size_t>(std::min_element(costs.begin(), costs.end()) - costs.begin());
  for (size_t i = 0; i < plans.size(); ++i)
    if (costs[i] <= (1 + kNoiseFloor) * least && costs[i] < std::numeric_limits<double>::infinity() &&
        is_simpler(*plans[i], *plans[winner]))
      winner = i;
  return winner;
}

}  // namespace cohort
