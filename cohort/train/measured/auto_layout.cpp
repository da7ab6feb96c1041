// --layout auto, from the measurement to a configuration.
//
//   1. measure_model() for 1, 2, 4, ... and all workers.
//   2. search_machines(). Plans that this configuration refuses (an option that goes with dp alone, say) are passed over.
//   3. Plans of different kinds whose intervals overlap with that of the best, three at most, train kTrialSteps steps each, in ranks and a
//      folder of their own that are gone afterwards; of the least medians the simplest layout wins (plan/explain/trial_choice.cpp).

#include "cohort/train/measured/auto_layout.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cohort/base/clock.h"
#include "cohort/base/error.h"
#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/text.h"
#include "cohort/comm/group.h"
#include "cohort/job/devices.h"
#include "cohort/job/injected_faults.h"
#include "cohort/job/job.h"
#include "cohort/job/option_rules.h"
#include "cohort/job/refusals.h"
#include "cohort/plan/calibration/calibration_file.h"
#include "cohort/plan/explain/explain.h"
#include "cohort/plan/explain/trial_choice.h"
#include "cohort/plan/explain/uneven.h"
#include "cohort/plan/goal/goal_search.h"
#include "cohort/plan/joint/search_machines.h"
#include "cohort/study/goal/goal_worth.h"
#include "cohort/train/measured/measure_model.h"
#include "cohort/train/run/train_job.h"
#include "cohort/world/launch.h"

namespace cohort {
namespace {

constexpr int kMostTrials = 3, kTrialSteps = 12;
constexpr double kWorthTrying = 1.15;  // Times the best forecast: beyond, overlapping intervals say more of the machine than of the plans.
constexpr double kMostTrialSeconds = 20;
constexpr double kPlainSeconds = 1;  // To search for plain data parallelism's time to a goal.

/// The user's configuration under a plan's layout, which says all that was chosen; with a goal also under its batch.
Config with_plan(const Config& config, const ModelProfile& profile, const RankedPlan& plan, const AutoGoal* goal) {
  Layout layout = layout_of(profile, plan);
  Config out = config;
  if (goal) {
    out.global_batch = plan.global_batch;
    out = goal->settle(out, layout);
  }
  if (out.workers > 0 || layout.num_ranks() > 1) out.workers = layout.num_ranks();
  out.device = first_devices_of(out.device, layout.num_ranks());  // Fewer ranks than were asked for may have won.
  out.inject = selected_faults(out.inject, layout.num_ranks(), false);
  if (layout.accumulate > 0) out.accumulate = layout.accumulate;
  if (!layout.precision.empty()) out.precision = layout.precision;
  if (layout.shares == "equal") layout.shares.clear();
  layout.accumulate = 0, layout.precision.clear();
  out.layout = to_text(layout);
  return out;
}

bool is_refused(const Config& changed) {
  try {
    const Job job = resolve(changed, changed.workers);
    check_options(job.situation(is_text_data(changed.data)));
    return refusal_of(job.situation(is_text_data(changed.data))).has_value();
  } catch (const Error&) {
    return true;
  }
}

/// Median seconds of a step that really runs; infinite where it fails.
double tried_seconds(const Config& config, const DataSet& data) {
  const TemporaryFolder folder("cohort-trial");
  Config trial = config;
  trial.run = folder.path() + "/run";
  trial.steps = kTrialSteps, trial.epochs = 0;
  trial.goal.clear(), trial.checkpoint_every = -1;
  trial.inject = selected_faults(trial.inject, trial.workers, /*slow_only=*/true);
  trial.json = false, trial.quiet = true;
  const std::string file = folder.path() + "/seconds";
  const Job job = resolve(trial, trial.workers);
  const int code = run_ranks({.num_ranks = trial.workers}, [&](const World& world) {
    const TrainResult result = train(job, data, world, {.reports = false});
    if (world.rank == 0) write_file_atomically(file, concat(result.step_seconds));
    return result.interrupted ? static_cast<int>(ErrorCode::kInterrupted) : 0;
  });
  if (code == static_cast<int>(ErrorCode::kInterrupted)) fail(ErrorCode::kInterrupted, "interrupted while layouts were tried");
  if (code != 0) return std::numeric_limits<double>::infinity();
  return parse_number(read_small_file(file, 100)).value_or(std::numeric_limits<double>::infinity());
}

struct Choice {
  SearchRequest request;
  RankedPlan plan;
};

/// What a plan is asked: the least step time, or with a goal the least time to it.
SearchRequest request_for(const Config& config, const ModelProfile& profile, const DataSet& data, const AutoGoal* goal) {
  SearchRequest request = measured_request(config, profile);
  if (!goal) return request;
  request.objective = Objective::kTimeToGoal;
  request.steps_curve = goal->curve.useful_points();
  request.num_samples = data.train->num_samples();
  return request;
}

/// The best that the configuration does not refuse first, then those of other machines and the runners-up, by forecast.
std::vector<Choice> candidates(const Config& config, const MachineAnswer& found, const AutoGoal* goal) {
  std::vector<Choice> all = {{found.request, found.answer.best}};
  for (const RankedPlan& plan : found.answer.runners_up) all.push_back({found.request, plan});
  for (const MachineAnswer::Tried& tried : found.tried)
    if (tried.plan && tried.request.problem.cluster.num_devices() != found.request.problem.cluster.num_devices())
      all.push_back({tried.request, *tried.plan});
  std::erase_if(all, [&](const Choice& one) { return is_refused(with_plan(config, one.request.problem.profile, one.plan, goal)); });
  if (!found.request.fixed.contains("accumulate"))
    for (Choice& one : all) {
      RankedPlan round = with_round_accumulate(one.request.problem, one.plan);
      if (!is_refused(with_plan(config, one.request.problem.profile, round, goal))) one.plan = std::move(round);
    }
  std::stable_sort(all.begin(), all.end(), [](const Choice& a, const Choice& b) { return a.plan.objective < b.plan.objective; });
  return all;
}

std::vector<const RankedPlan*> plans_of(const std::vector<Choice>& choices) {
  std::vector<const RankedPlan*> out;
  for (const Choice& one : choices) out.push_back(&one.plan);
  return out;
}

std::string text_of(const Choice& one) {
  Layout layout = layout_of(one.request.problem.profile, one.plan);
  layout.precision.clear();
  if (layout.shares == "equal") layout.shares.clear();
  if (layout.accumulate == 1) layout.accumulate = 0;
  const std::string text = layout.stages.empty() ? to_text(layout) : concat("stages side by side on ", layout.pp, " workers");
  return one.request.objective == Objective::kTimeToGoal ? concat(text, " with a batch of ", one.plan.global_batch) : text;
}

/// The table of workers, and what is said of it.
TimeToGoal time_to_goal(const MachineAnswer& found, const RankedPlan& chosen, const AutoGoal& goal) {
  TimeToGoal out = goal_of_machines(found, goal.curve.all_points(), kPlainSeconds, nullptr, nullptr);
  out.chosen = chosen;
  study::add_worth(goal.curve, out);
  return out;
}

AutoLayout finish(const Config& config, const MachineAnswer& found, const Choice& chosen, const AutoGoal* goal,
                  std::vector<std::string> sentences) {
  Plan plan{.request = chosen.request, .answer = found.answer};
  if (goal) {
    plan.goal = time_to_goal(found, chosen.plan, *goal);
    for (std::string& sentence : goal_sentences(chosen.request.problem.profile, *plan.goal)) sentences.push_back(std::move(sentence));
  }
  if (to_text(plan.answer.best.candidate.layout) != to_text(chosen.plan.candidate.layout)) {
    plan.answer.runners_up.insert(plan.answer.runners_up.begin(), plan.answer.best);
    plan.answer.optimal = false;
  }
  plan.answer.best = chosen.plan;
  plan.answer.lower_bound = std::min(plan.answer.lower_bound, chosen.plan.objective);
  plan.reasons = reasons_of(plan.request, plan.answer);
  plan.reasons.insert(plan.reasons.begin(), sentences.begin(), sentences.end());
  AutoLayout out{.config = with_plan(config, chosen.request.problem.profile, chosen.plan, goal),
                 .plan = to_json(plan),
                 .problem = chosen.request.problem,
                 .sentences = std::move(sentences)};
  if (const auto uneven = uneven_forecast(chosen.request.problem, chosen.plan)) out.sentences.push_back(sentence_of(*uneven));
  if (out.config.inject != config.inject)
    out.sentences.push_back(concat(name_settings("--inject "), config.inject, ": faults of ranks that are not started fall away"));
  return out;
}

/// What is measured here are layers on the CPU.
void check_measurable(const Config& config) {
  if (parse_devices(config.device).all_cpu()) return;
  fail(ErrorCode::kBadInput, name_settings("--layout auto with --device "), config.device,
       name_settings(": layers on GPUs are not measured yet; name a layout, or plan from a description: cohort plan --cluster FILE, whose "
                     "hosts may have devices of several kinds"));
}

/// What is sure.
AutoLayout plain(const Config& config, const AutoGoal* goal, const std::string& why) {
  AutoLayout out{.config = config, .plan = {}, .problem = {}, .sentences = {}};
  out.config.layout = "dp";
  if (goal) out.config = goal->settle(out.config, parse_layout("dp", config.workers));
  out.sentences.push_back(why + ": data parallelism over all workers is taken" +
                          (goal ? concat(", with a batch of ", config.global_batch, ", the largest up to the flat point") : ""));
  return out;
}

std::string machines_sentence(const MachineAnswer& found) {
  std::vector<std::string> parts;
  for (const MachineAnswer::Tried& tried : found.tried) {
    const int workers = tried.request.problem.cluster.num_devices();
    parts.push_back(concat(workers, workers == 1 ? " worker " : " workers ",
                           tried.plan ? human_seconds(tried.plan->forecast.step_seconds) : tried.why));
  }
  return "forecast of a step by workers: " + join(parts, ", ");
}

}  // namespace

std::vector<int> numbers_of_workers(int most) {
  std::vector<int> out;
  for (int workers = 1; workers < most; workers *= 2) out.push_back(workers);
  out.push_back(most);
  return out;
}

SearchRequest measured_request(const Config& config, const ModelProfile& profile) {
  SearchRequest request;
  request.problem.profile = profile;
  if (config.memory_limit > 0)  // It is about tensors, which is what train holds it against.
    for (Cluster& machine : request.problem.profile.measured_on)
      for (DeviceKind& device : machine.devices) device.reserved_bytes = 0;
  request.problem.global_batch = config.global_batch;
  request.problem.optimizer_arrays = static_cast<int>(UpdateRule{.kind = optimizer_kind(config.optimizer)}.slots().size());
  request.problem.private_weights = config.weights == "private";
  request.problem.memory_limit_bytes = config.memory_limit;
  if (config.bucket_bytes > 0) request.problem.bucket_bytes = config.bucket_bytes;
  request.problem.writes_text = config.sample_bytes > 0 && is_text_data(config.data) == true;
  request.fixed["precision"] = config.precision;
  request.fixed["compress"] = "none";
  if (is_given(config, *find_setting("accumulate"))) request.fixed["accumulate"] = std::to_string(config.accumulate);
  return request;
}

AutoLayout choose_layout(const Config& config, const DataSet& data, bool shows_progress, const KnownBefore& known, const AutoGoal* goal) {
  check_measurable(config);
  const double start = steady_seconds();
  const int most = std::max(1, config.workers);
  ModelProfile profile;
  try {
    profile =
        known.profile
            ? *known.profile
            : measure_model(config, data,
                            {.precisions = {config.precision}, .workers = numbers_of_workers(most), .shows_progress = shows_progress});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBadInput && error.code() != ErrorCode::kFailed) throw;
    return plain(config, goal, "the model's layers could not be measured one by one (the line above says why)");
  }
  const double measured = steady_seconds(), seconds = known.profile ? known.measured_seconds : measured - start;
  SearchRequest request = request_for(config, profile, data, goal);
  request.problem.intervals = kept_intervals(known.calibration_file, profile);
  request.num_runners_up = 12;
  request.search_seconds = 5;
  const MachineAnswer found = search_machines(request, most, nullptr, nullptr);
  std::vector<Choice> choices = candidates(config, found, goal);
  std::vector<std::string> sentences = {concat(seconds == 0 ? "measured before" : "measured in " + human_seconds(seconds), ", planned in ",
                                               human_seconds(steady_seconds() - measured), "; ", machines_sentence(found))};
  if (choices.empty()) {
    AutoLayout out = plain(config, goal, "no plan that was found goes with these options");
    out.sentences.insert(out.sentences.begin(), sentences.begin(), sentences.end());
    return out;
  }
  const double high = std::min(choices.front().plan.high, kWorthTrying * choices.front().plan.objective);
  std::vector<Choice> near, close;
  for (const Choice& one : choices)
    if (one.plan.low <= high && one.plan.objective <= kWorthTrying * choices.front().plan.objective &&
        one.plan.forecast.step_seconds * kTrialSteps < kMostTrialSeconds)
      near.push_back(one);
  for (const size_t each : different_plans(plans_of(near), kMostTrials)) close.push_back(near[each]);
  size_t winner = 0;
  if (close.size() > 1) {
    std::vector<std::string> parts;
    std::vector<double> costs;
    for (size_t i = 0; i < close.size(); ++i) {
      const RankedPlan& plan = close[i].plan;
      const double seconds = tried_seconds(with_plan(config, close[i].request.problem.profile, plan, goal), data);
      parts.push_back(concat(text_of(close[i]), " ", std::isfinite(seconds) ? human_seconds(seconds) : std::string("failed"), " (forecast ",
                             human_seconds(plan.forecast.step_seconds), ")"));
      const double times = plan.objective / plan.forecast.step_seconds;  // Steps to the goal; 1 where the step is the objective.
      costs.push_back(seconds * times);
    }
    winner = winner_of_trials(plans_of(close), costs);
    const auto least = std::min_element(costs.begin(), costs.end());
    if (std::isfinite(*least) && costs[winner] > *least)
      parts.back() += concat("; within ", 100 * kNoiseFloor, " %, where two measurements of one layout may differ, the simplest is taken");
    sentences.push_back(concat("too close to tell by forecast, so each ran ", kTrialSteps, " steps: ", join(parts, "; ")));
  }
  const Choice& chosen = close.empty() ? choices.front() : close[winner];
  const int ranks = layout_of(profile, chosen.plan).num_ranks();
  sentences.push_back(concat("layout ", text_of(chosen), ", ", ranks, " of ", most, most == 1 ? " worker" : " workers",
                             ranks < most ? ": more are not faster" : ""));
  return finish(config, found, chosen, goal, std::move(sentences));
}

AutoLayout choose_layout_together(const Config& config, const DataSet& data, const World& world, const KnownBefore& known,
                                  const AutoGoal* goal) {
  check_measurable(config);
  Group group = Group::create(world, {.backend = config.backend, .timeout_seconds = config.timeout});
  const ModelProfile profile =
      known.profile ? *known.profile : measure_model_together(config, data, {.precisions = {config.precision}}, group);
  std::string answer;
  if (world.rank == 0) {
    try {
      SearchRequest request = request_for(config, profile, data, goal);
      request.problem.intervals = kept_intervals(known.calibration_file, profile);
      request.num_runners_up = 20;
      request.search_seconds = 5;
      const MachineAnswer found = search_machines(request, world.size, nullptr, nullptr);
      std::vector<Choice> all = candidates(config, found, goal);
      std::vector<std::string> sentences;
      const int fewest = all.empty() ? world.size : layout_of(profile, all.front().plan).num_ranks();
      if (fewest < world.size)
        sentences.push_back(concat(fewest, fewest == 1 ? " rank" : " ranks", " would be faster than the ", world.size,
                                   " that were started: ", human_seconds(all.front().plan.forecast.step_seconds), " a step, ",
                                   text_of(all.front())));
      std::erase_if(all, [&](const Choice& one) { return layout_of(profile, one.plan).num_ranks() != world.size; });
      if (all.empty()) {  // Of all ranks only.
        request.fixed["dp"] = std::to_string(world.size), request.fixed["pp"] = request.fixed["tp"] = "1";
        all = candidates(config, search_machines(request, world.size, nullptr, nullptr), goal);
      }
      if (all.empty()) fail(ErrorCode::kInfeasible, "auto: no layout of ", world.size, " ranks fits; start fewer, or name one");
      sentences.push_back(concat("layout ", text_of(all.front()), ", forecast ", human_seconds(all.front().plan.forecast.step_seconds)));
      const AutoLayout chosen = finish(config, found, all.front(), goal, sentences);
      answer = Json{{"layout", chosen.config.layout},
                    {"accumulate", chosen.config.accumulate},
                    {"precision", chosen.config.precision},
                    {"plan", chosen.plan},
                    {"global_batch", chosen.config.global_batch},
                    {"sentences", chosen.sentences}}
                   .dump();
    } catch (const Error& error) {
      answer = Json{{"code", static_cast<int>(error.code())}, {"error", error.what()}}.dump();
    }
  }
  const Json chosen = Json::parse(group.all_gather_text(answer, "the layout").front());
  if (chosen.contains("error")) throw Error(static_cast<ErrorCode>(chosen["code"].get<int>()), chosen["error"].get<std::string>());
  AutoLayout out{.config = config, .plan = chosen["plan"], .sentences = {}};
  out.config.global_batch = chosen["global_batch"].get<int64_t>();
  if (goal) out.config = goal->settle(out.config, parse_layout(chosen["layout"].get<std::string>(), world.size));
  out.config.layout = chosen["layout"].get<std::string>();
  out.config.accumulate = chosen["accumulate"].get<int>();
  out.config.precision = chosen["precision"].get<std::string>();
  out.sentences = chosen["sentences"].get<std::vector<std::string>>();
  return out;
}

}  // namespace cohort
