// --layout auto: checks before the measurement, then the choice.
//
// An option is refused only where every layout that may be chosen refuses it; one layout of each kind is tried. Checks of the model build
// it, in a process that may start LibTorch's threads. Cost: one fork and one model.
#include "cohort/tune/auto_layout.h"

#include "cohort/plan/profile/calibration_file.h"
#include "cohort/plan/time_to_goal.h"
#include "cohort/study/goal_curve.h"

#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "cohort/base/clock.h"
#include "cohort/base/error.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/comm/group.h"
#include "cohort/job/job.h"
#include "cohort/job/option_rules.h"
#include "cohort/job/refusals.h"
#include "cohort/job/specs/devices.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/plan/explain.h"
#include "cohort/plan/search/joint_search.h"
#include "cohort/train/check_run.h"
#include "cohort/train/initial_model.h"
#include "cohort/train/step/parallelize.h"
#include "cohort/tune/layout_trials.h"
#include "cohort/tune/measure_machine.h"
#include "cohort/tune/measure_model.h"

namespace cohort {
namespace {

std::vector<Layout> kinds_of_layouts(int num_ranks, bool may_be_fewer) {
  std::vector<Layout> kinds = {{.dp = num_ranks}};
  if (num_ranks == 1) return kinds;
  kinds.push_back({.dp = num_ranks, .zero = 1});
  kinds.push_back({.pp = num_ranks});
  kinds.push_back({.tp = num_ranks});
  if (may_be_fewer) kinds.emplace_back();
  return kinds;
}

bool refuses_layout(const Config& config, const Layout& layout, std::optional<bool> is_text) {
  try {
    check_run(resolve(config, layout), is_text);
    return false;
  } catch (const Error&) {
    return true;
  }
}

bool has_batch_norm(const LayerGraph& model) {
  const auto modules = model.modules(/*include_self=*/false);
  return std::any_of(modules.begin(), modules.end(), [](const auto& module) {
    return module->template as<torch::nn::BatchNorm1dImpl>() || module->template as<torch::nn::BatchNorm2dImpl>() ||
           module->template as<torch::nn::BatchNorm3dImpl>();
  });
}

/// Bytes of weights and gradients.
int64_t trained_bytes(const LayerGraph& model) {
  int64_t bytes = 0;
  for (const NamedTensor& named : distinct_parameters(model))
    bytes += static_cast<int64_t>(named.tensor.nbytes()) * (named.tensor.requires_grad() ? 2 : 1);
  return bytes;
}

/// No layout gives a rank less than an equal part of weights and gradients.
void check_weights_fit(const Config& config, int num_ranks, int64_t bytes) {
  const int64_t least = bytes / num_ranks;
  if (config.memory_limit == 0 || least <= config.memory_limit) return;
  fail(ErrorCode::kInfeasible, "no layout of at most ", num_ranks, num_ranks == 1 ? " device" : " devices", " fits into ",
       config.memory_limit, " bytes a rank: weights and gradients of ", config.model, " alone are ", bytes, " bytes, ", least,
       " for each rank at least; give each rank more, or take a smaller model");
}

}  // namespace

void check_any_layout(const Config& config, int num_ranks, bool may_be_fewer, std::optional<bool> is_text) {
  const std::vector<Layout> kinds = kinds_of_layouts(num_ranks, may_be_fewer);
  for (const Layout& layout : kinds)
    if (!refuses_layout(config, layout, is_text)) return;
  check_run(resolve(config, kinds.front()), is_text);
}

void check_model_for_auto(const Job& job, const DataSet& data, int num_ranks, bool forks) {
  const auto checked_bytes = [&] {
    const std::shared_ptr<LayerGraph> model = initial_model(job.config, data.train->shape()).model;
    check_model(job.config, Layout(), *model);
    check_goal(job, *model, *data.validation);
    check_batch_norm(job.config, has_batch_norm(*model));
    return trained_bytes(*model);
  };
  const int64_t bytes =
      forks ? measure_in_ranks(1, "auto", [&](const World&, Group&) { return Json(checked_bytes()); }).get<int64_t>() : checked_bytes();
  check_weights_fit(job.config, num_ranks, bytes);
}

// The choice, from the measurement to a configuration.
//
//   1. measure_model() for 1, 2, 4, ... and all workers.
//   2. search_machines(). Plans that the configuration refuses, such as options for dp only, are skipped.
//   3. At most three plans of different kinds whose intervals overlap with that of the best train kTrialSteps steps each, in temporary
//      ranks and a temporary folder; the simplest layout among the fastest wins (layout_trials.cpp).
//
// Under a launcher its ranks measure and run the trials, rank 0 plans, and plans of fewer ranks are only reported.

namespace {

constexpr double kPlainSeconds = 1;  // Time limit of the search for plain data parallelism.

bool is_refused(const Config& changed) {
  try {
    const Job job = resolve(changed, changed.workers);
    check_options(job.situation(is_text_data(changed.data)));
    return refusal_of(job.situation(is_text_data(changed.data))).has_value();
  } catch (const Error&) {
    return true;
  }
}

/// The search request: the least step time, or with a goal the least time to it.
SearchRequest request_for(const Config& config, const ModelProfile& profile, const DataSet& data, const KnownInputs& known,
                          const AutoGoal* goal, int num_runners_up) {
  SearchRequest request = measured_request(config, profile);
  request.problem.intervals = kept_intervals(known.calibration_file, profile);
  request.num_runners_up = num_runners_up;
  request.search_seconds = 5;
  if (!goal) return request;
  request.objective = Objective::kTimeToGoal;
  request.steps_curve = goal->curve.useful_points();
  request.num_samples = data.train->num_samples();
  return request;
}

/// All plans that the configuration accepts, of all machines, best forecast first.
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

/// The table of workers with the sentences about it.
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
  if (chosen.plan.candidate.layout.num_ranks() <= found.request.problem.cluster.num_devices())
    for (std::string& sentence : larger_machine_sentences(found)) out.sentences.push_back(std::move(sentence));
  if (out.config.inject != config.inject)
    out.sentences.push_back(concat(name_settings("--inject "), config.inject, ": faults for ranks that are not started are ignored"));
  return out;
}

/// Only layers on the CPU can be measured.
void check_measurable(const Config& config) {
  if (parse_devices(config.device).all_cpu()) return;
  fail(ErrorCode::kBadInput, name_settings("--layout auto with --device "), config.device,
       name_settings(": layers on GPUs are not measured yet; name a layout, or plan from a description: cohort plan --cluster FILE, whose "
                     "hosts may have devices of several kinds"));
}

/// Data parallelism, where nothing better is known.
AutoLayout plain(const Config& config, const AutoGoal* goal, const std::string& why) {
  AutoLayout out{.config = config, .plan = {}, .problem = {}, .sentences = {}};
  out.config.layout = "dp";
  if (goal) out.config = goal->settle(out.config, parse_layout("dp", config.workers));
  out.sentences.push_back(why + ": data parallelism over all workers is taken" +
                          (goal ? concat(", with a batch of ", config.global_batch, ", the largest up to the flat point") : ""));
  return out;
}

/// The choice that won its trials, or the best forecast where none were run; adds the sentence on the trials.
const Choice& winner_or_first(const std::vector<Choice>& choices, const std::vector<Choice>& close, const std::vector<double>& seconds,
                              std::vector<std::string>& sentences) {
  if (seconds.empty()) return close.empty() ? choices.front() : close.front();
  const Winner won = winner_of(close, seconds);
  sentences.push_back(won.sentence);
  return close[won.index];
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
  if (config.memory_limit > 0)  // --memory-limit counts tensors only.
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

AutoLayout choose_layout(const Config& config, const DataSet& data, bool shows_progress, const KnownInputs& known, const AutoGoal* goal) {
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
  const MachineAnswer found = search_machines(request_for(config, profile, data, known, goal, 12), most, nullptr, nullptr);
  std::vector<Choice> choices = candidates(config, found, goal);
  std::vector<std::string> sentences = {concat(seconds == 0 ? "measured before" : "measured in " + human_seconds(seconds), ", planned in ",
                                               human_seconds(steady_seconds() - measured), "; ", machines_sentence(found))};
  if (choices.empty()) {
    AutoLayout out = plain(config, goal, "no plan that was found goes with these options");
    out.sentences.insert(out.sentences.begin(), sentences.begin(), sentences.end());
    return out;
  }
  std::vector<Choice> close = plans_to_try(choices);
  std::vector<double> tried;
  if (close.size() > 1) {
    const auto try_out = [&](const Choice& one) {
      tried.push_back(tried_seconds(with_plan(config, one.request.problem.profile, one.plan, goal), data));
    };
    for (const Choice& one : close) try_out(one);
    while (const Choice* other = other_number_of_workers(choices, close, tried)) {
      close.push_back(*other);
      try_out(close.back());
    }
  }
  const Choice& chosen = winner_or_first(choices, close, tried, sentences);
  const int ranks = layout_of(profile, chosen.plan).num_ranks();
  sentences.push_back(concat("layout ", layout_text(chosen), ", ", ranks, " of ", most, most == 1 ? " worker" : " workers",
                             ranks < most ? ": more are not faster" : ""));
  return finish(config, found, chosen, goal, std::move(sentences));
}

namespace {

/// What rank 0 sends the others about a choice.
Json choice_to_json(const Config& config) {
  return Json{
      {"layout", config.layout}, {"accumulate", config.accumulate}, {"precision", config.precision}, {"global_batch", config.global_batch}};
}

Config with_choice(const Config& config, const Json& wire, const World& world, const AutoGoal* goal) {
  Config out = config;
  out.global_batch = wire.at("global_batch").get<int64_t>();
  if (goal) out = goal->settle(out, parse_layout(wire.at("layout").get<std::string>(), world.size));
  out.layout = wire.at("layout").get<std::string>();
  out.accumulate = wire.at("accumulate").get<int>();
  out.precision = wire.at("precision").get<std::string>();
  return out;
}

/// Runs `make` on rank 0 and returns its answer, or throws its Error, on all ranks.
Json from_rank_zero(const World& world, Group& group, const char* what, const std::function<Json()>& make) {
  std::string answer;
  if (world.rank == 0) {
    try {
      answer = make().dump();
    } catch (const Error& error) {
      answer = Json{{"code", static_cast<int>(error.code())}, {"error", error.what()}}.dump();
    }
  }
  Json reply = Json::parse(group.all_gather_text(answer, what).front());
  if (reply.is_object() && reply.contains("error"))
    throw Error(static_cast<ErrorCode>(reply["code"].get<int>()), reply["error"].get<std::string>());
  return reply;
}

/// Rank 0's plans for all ranks, best first, and sentences about those for fewer.
struct Planned {
  MachineAnswer found;
  std::vector<Choice> of_all;
  std::vector<std::string> sentences;
};

Planned plans_of_all_ranks(const Config& config, const ModelProfile& profile, const DataSet& data, int num_ranks, const KnownInputs& known,
                           const AutoGoal* goal) {
  SearchRequest request = request_for(config, profile, data, known, goal, 20);
  Planned out{.found = search_machines(request, num_ranks, nullptr, nullptr)};
  out.of_all = candidates(config, out.found, goal);
  if (!out.of_all.empty()) {
    const Choice& best = out.of_all.front();
    const int fewest = layout_of(profile, best.plan).num_ranks();
    if (fewest < num_ranks)
      out.sentences.push_back(concat(fewest, fewest == 1 ? " rank" : " ranks", " would be faster than the ", num_ranks,
                                     " that were started: ", human_seconds(best.plan.forecast.step_seconds), " a step, ",
                                     layout_text(best)));
  }
  std::erase_if(out.of_all, [&](const Choice& one) { return layout_of(profile, one.plan).num_ranks() != num_ranks; });
  if (out.of_all.empty()) {  // Search again for all ranks only.
    request.fixed["dp"] = std::to_string(num_ranks), request.fixed["pp"] = request.fixed["tp"] = "1";
    out.of_all = candidates(config, search_machines(request, num_ranks, nullptr, nullptr), goal);
  }
  if (out.of_all.empty()) fail(ErrorCode::kInfeasible, "auto: no layout of ", num_ranks, " ranks fits; start fewer, or name one");
  return out;
}

}  // namespace

AutoLayout choose_layout_together(const Config& config, const DataSet& data, const World& world, const KnownInputs& known,
                                  const AutoGoal* goal) {
  check_measurable(config);
  Group group = Group::create(world, {.backend = config.backend, .timeout_seconds = config.timeout});
  const ModelProfile profile =
      known.profile ? *known.profile : measure_model_together(config, data, {.precisions = {config.precision}}, group);
  Planned planned;  // Rank 0's.
  std::vector<Choice> close;
  const Json trials = from_rank_zero(world, group, "layouts to try", [&] {
    planned = plans_of_all_ranks(config, profile, data, world.size, known, goal);
    close = plans_to_try(planned.of_all);
    Json out = Json::array();
    for (const Choice& one : close) out.push_back(choice_to_json(with_plan(config, profile, one.plan, goal)));
    return out;
  });
  std::vector<double> tried;
  if (trials.size() > 1)
    for (const Json& trial : trials) tried.push_back(tried_seconds_together(with_choice(config, trial, world, goal), data, world, group));
  const Json chosen = from_rank_zero(world, group, "the layout", [&] {
    const Choice& choice = winner_or_first(planned.of_all, close, tried, planned.sentences);
    planned.sentences.push_back(concat("layout ", layout_text(choice), ", forecast ", human_seconds(choice.plan.forecast.step_seconds)));
    const AutoLayout done = finish(config, planned.found, choice, goal, planned.sentences);
    Json out = choice_to_json(done.config);
    out["plan"] = done.plan;
    out["sentences"] = done.sentences;
    return out;
  });
  return {.config = with_choice(config, chosen, world, goal),
          .plan = chosen["plan"],
          .sentences = chosen["sentences"].get<std::vector<std::string>>()};
}

}  // namespace cohort
