#include <atomic>
#include <cmath>
#include <cstdio>
#include <map>

#include "cohort/base/error.h"
#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/files/writable_place.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/options/output.h"
#include "cohort/cli/options/train_line.h"
#include "cohort/cli/options/verb.h"
#include "cohort/cli/plan/plan.h"
#include "cohort/job/option_rules.h"
#include "cohort/job/refusals.h"
#include "cohort/job/specs/injected_faults.h"
#include "cohort/parallel/compress/compressor.h"
#include "cohort/plan/explain.h"
#include "cohort/plan/plan.h"
#include "cohort/plan/profile/analytic_profile.h"
#include "cohort/plan/search/joint_search.h"
#include "cohort/record/run_event.h"
#include "cohort/report/plan/plan_page.h"
#include "cohort/tune/auto_layout.h"
#include "cohort/tune/plan_sync.h"
#include "cohort/world/stop.h"

namespace cohort {
namespace {

/// The keys of the layout that were typed; the search chooses the others.
std::map<std::string, std::string> fixed_keys(const Arguments& arguments) {
  std::map<std::string, std::string> fixed;
  const Config& config = arguments.config;
  if (arguments.was_given("layout") && config.layout != "auto") {
    if (is_layout_file(config.layout) || config.layout.starts_with("{"))
      fail(ErrorCode::kBadInput, "--layout ", config.layout, ": plan takes the keys that are to stay as KEY=VALUE,...");
    // Reports an invalid key with the same message as train.
    if (const auto refused = refusal_of(parse_layout(config.layout, 0))) throw Error(ErrorCode::kBadInput, *refused);
    if (config.layout == "single") fixed = {{"dp", "1"}, {"pp", "1"}, {"tp", "1"}};
    else
      for (const std::string& part : split(config.layout, ','))
        fixed[trim(part.substr(0, part.find('=')))] = trim(part.substr(part.find('=') + 1));
  }
  for (const char* name : {"precision", "accumulate"}) {
    if (!arguments.was_given(name)) continue;
    const std::string value = name == std::string("precision") ? config.precision : concat(config.accumulate);
    const auto [at, is_new] = fixed.emplace(name, value);
    if (!is_new && at->second != value)
      fail(ErrorCode::kBadInput, "--", name, " ", value, " and --layout ", name, "=", at->second, " contradict each other");
  }
  return fixed;
}

/// Refuses options that no plan of the request could use.
void check_that_options_act(const Arguments& arguments, const SearchRequest& request) {
  const auto fixed = [&](const char* key, const std::string& fallback) {
    const auto found = request.fixed.find(key);
    return found == request.fixed.end() ? fallback : found->second;
  };
  const int devices = request.num_workers > 0 ? request.num_workers : request.problem.cluster.num_devices();
  std::string why;
  if (devices == 1) why = "there is one worker";
  else if (fixed("dp", "") == "1") why = "dp is 1";
  const auto refuse = [&](const char* option, const std::string& now) {
    if (!now.empty())
      fail(ErrorCode::kBadInput, "--", option, " would do nothing here: it is for gradients that replicas exchange, and ", now,
           "; leave it out");
  };
  for (const char* name : {"bucket-bytes", "weights"})
    if (arguments.was_given(name)) refuse(name, why);
  if (arguments.was_given("weights") && fixed("zero", "0") != "0") refuse("weights", "zero=" + fixed("zero", "") + " divides them");
  if (!arguments.options.contains("compress")) return;
  refuse("compress", why);
  for (const auto& [key, plain] : {std::pair("pp", "1"), std::pair("tp", "1"), std::pair("zero", "0")})
    if (fixed(key, plain) != plain) refuse("compress", concat(key, "=", fixed(key, ""), " exchanges them as they are"));
  if (fixed("compress", "") == "none") refuse("compress", "compress=none keeps them as they are");
}

/// Excludes tp, which cannot smooth labels as the study's trials do.
void fix_tensor_parallelism(const Config& config, SearchRequest& request) {
  const auto [at, is_new] = request.fixed.emplace("tp", "1");
  if (at->second != "1")
    fail(ErrorCode::kBadInput, "tp=", at->second, " with --study ", config.study,
         ": trials of it smooth their labels, which divided layers do not do; leave tp out");
}

Objective objective_of(const Arguments& arguments, bool has_curve) {
  const std::string name = arguments.option("objective", has_curve ? "time-to-goal" : "step-time");
  for (size_t i = 0; i < objective_names().size(); ++i)
    if (objective_names()[i] == name) return static_cast<Objective>(i);
  fail(ErrorCode::kBadInput, "--objective '", name, "'", did_you_mean(name, objective_names()),
       "; there are: ", join(objective_names(), " "));
}

SearchRequest request_of(const Arguments& arguments, const std::optional<study::GoalCurve>& curve) {
  const Config& config = arguments.config;
  const bool has_cluster = arguments.options.contains("cluster"), has_profile = arguments.options.contains("profile");
  const bool from_file = has_profile && (has_cluster || !arguments.was_given("model"));
  if (arguments.was_given("global-batch") && config.global_batch == 0)
    fail(ErrorCode::kBadInput, "--global-batch auto: give a number; with --study or --steps-curve the batch is chosen");
  if (from_file && arguments.was_given("model")) fail(ErrorCode::kBadInput, "--profile says which model it is of; leave --model out");
  if ((has_cluster || from_file) && arguments.was_given("inject"))
    fail(ErrorCode::kBadInput, "--inject ", config.inject, ": it slows workers that are measured here, and ",
         has_cluster ? "--cluster says how fast they are" : "--profile has been measured", "; leave it out");
  if (!from_file && !arguments.was_given("model"))
    fail(ErrorCode::kBadInput,
         "plan: no model given; give --model NAME:... (its shapes, or measured here with --data), --profile FILE.json "
         "(docs/formats/profile.md), or --instance FILE.json");
  for (const char* name : {"data", "context", "image-size"})
    if (from_file && arguments.was_given(name)) fail(ErrorCode::kBadInput, "--", name, " is for --model: a --profile has its shapes");

  SearchRequest request;
  PlanProblem& problem = request.problem;
  if (has_cluster) problem.cluster = read_cluster(arguments.option("cluster", ""));
  problem.global_batch = config.global_batch;
  problem.optimizer_arrays = static_cast<int>(UpdateRule{.kind = optimizer_kind(config.optimizer)}.slots().size());
  problem.private_weights = config.weights == "private";
  problem.memory_limit_bytes = config.memory_limit;
  if (config.bucket_bytes > 0) problem.bucket_bytes = config.bucket_bytes;
  problem.profile = from_file      ? read_model_profile(arguments.option("profile", ""))
                    : !has_cluster ? profile_of_this_machine(arguments)
                                   : analytic_profile(config.model, problem.cluster,
                                                      {.data = arguments.was_given("data") ? config.data : "",
                                                       .image_size = config.image_size,
                                                       .context = arguments.was_given("context") ? config.context : 0});
  if (!has_cluster && problem.profile.measured_on.empty())
    fail(ErrorCode::kBadInput, "plan: ", arguments.option("profile", ""),
         " does not say what it was measured on; give --cluster FILE (clusters/ has some; docs/formats/cluster.md)");
  if (!has_cluster) {
    PlanProblem measured = measured_request(config, problem.profile).problem;
    problem.profile = std::move(measured.profile), problem.writes_text = measured.writes_text;
  }
  if (!has_cluster) problem.cluster = largest_machine(problem.profile, config.workers);  // search_machines() tries all.
  problem.intervals = kept_intervals_for(arguments, problem.profile);
  request.objective = objective_of(arguments, curve.has_value());
  if (curve) request.steps_curve = curve->useful_points();
  else if (request.objective == Objective::kTimeToGoal)
    fail(ErrorCode::kBadInput,
         "--objective time-to-goal needs --study DIR or --steps-curve FILE.csv (columns batch_size,steps; a study writes one)");
  request.num_workers = has_cluster ? config.workers : 0;
  request.fixed = fixed_keys(arguments);
  if (config.label_smoothing > 0) fix_tensor_parallelism(config, request);
  const auto compress = request.fixed.find("compress");
  if (compress != request.fixed.end()) check_compressor(compress->second);
  request.may_compress = arguments.options.contains("compress") || (compress != request.fixed.end() && compress->second != "none");
  check_that_options_act(arguments, request);
  request.num_runners_up = static_cast<int>(arguments.integer_option("runners-up", 5, 0, 100));
  request.search_seconds = arguments.number_option("search-seconds", 10, 0.01, 1e6);
  return request;
}

/// The progress line of the search.
class SearchLine {
 public:
  SearchLine(Objective objective, bool enabled) : objective_(objective), enabled_(enabled) {}
  ~SearchLine() {
    if (shown_) std::fprintf(stderr, "\r\033[K");
  }
  void show(const SearchProgress& progress) {
    if (!enabled_) return;
    shown_ = true;
    const bool found = std::isfinite(progress.best);
    std::fprintf(
        stderr, "\r\033[Kplan: %s, bound %s, gap %s, %lld of %lld layouts, %.1f s",
        found ? objective_text(objective_, progress.best).c_str() : "nothing yet", objective_text(objective_, progress.lower_bound).c_str(),
        found && progress.lower_bound > 0 ? concat(std::round(1000 * (progress.best / progress.lower_bound - 1)) / 10, " %").c_str() : "-",
        static_cast<long long>(progress.num_done), static_cast<long long>(progress.num_layouts), progress.seconds);
  }

 private:
  Objective objective_;
  bool enabled_, shown_ = false;
};

/// The command that runs the plan.
std::string train_command_of(const Arguments& arguments, const Plan& plan, const std::string& file) {
  const Layout layout = layout_of(plan.request.problem.profile, plan.answer.best);
  const Config& config = arguments.config;
  const Situation situation{.config = config,
                            .layout = layout,
                            .num_ranks = layout.num_ranks(),
                            .one_host = layout.num_ranks() <= plan.request.problem.cluster.hosts.front().devices_per_host};
  const std::string slow = selected_faults(config.inject, layout.num_ranks(), true);
  return train_line(
      arguments, plan.request.problem.profile,
      {.num_ranks = layout.num_ranks(),
       .global_batch = plan.answer.best.global_batch,
       .options = concat(slow.empty() ? "" : "--inject " + slow + " ", "--layout ", shell_quoted(file.empty() ? to_text(layout) : file)),
       // The layout holds accumulate and precision.
       .acts = [&](const std::string& name) { return name != "precision" && (name == "optimizer" || acts(name, situation)); },
       .one_host = situation.one_host});
}

void print_text(const Arguments& arguments, const Plan& plan, const std::vector<WhatIf>& changes) {
  std::printf("%s\n", plan_table(plan.request, plan.answer).c_str());
  if (plan.goal) std::printf("%s\n", goal_table(plan.request.problem.profile, *plan.goal).c_str());
  for (const std::string& reason : plan.reasons) std::printf("- %s\n", reason.c_str());
  if (!changes.empty()) std::printf("\nWhat would change it:\n");
  for (const WhatIf& change : changes) std::printf("- %s\n", change.sentence.c_str());
  for (const std::string& price : shadow_prices(changes)) std::printf("- %s\n", price.c_str());
  if (stop_requested()) std::printf("\nStopped: what is above was found before; not every change of the cluster was tried.\n");
  if (const Utilisation shares = utilisation_of(plan.request, plan.answer.best); !shares.naive.empty()) {
    std::printf("\nA plain cut of the same stages, one at a time: %s a step; busy by worker, plain and planned:",
                human_seconds(shares.naive_step_seconds).c_str());
    for (size_t worker = 0; worker < shares.naive.size(); ++worker)
      std::printf(" %.0f/%.0f %%", 100 * shares.naive[worker], 100 * shares.planned[worker]);
    std::printf("\n");
  }
  std::printf("\n%s\n", train_command_of(arguments, plan, arguments.option("out", "")).c_str());
}

/// The stages as in the answer for an instance. The seconds of a worker with several stages are divided by their costs.
Json stages_json(const Plan& plan) {
  const RankedPlan& best = plan.answer.best;
  const StageAssignment& cut = best.candidate.stages;
  const auto load = [&](int worker) {
    const WorkerForecast& its = best.forecast.workers[static_cast<size_t>(worker)];
    return its.forward_seconds + its.backward_seconds;
  };
  if (best.candidate.layout.pp == 1)
    return Json::array({{{"layers", best.forecast.workers[0].layers}, {"devices", ranks_of_worker(plan, 0)}, {"load_seconds", load(0)}}});
  std::map<std::string, Profile> profiles;  // Keyed by the kind of device.
  std::vector<double> seconds(cut.worker_of_stage.size()), of_worker(best.forecast.workers.size());
  for (size_t layer = 0; layer < cut.stage_of.size(); ++layer) {
    const auto stage = static_cast<size_t>(cut.stage_of[layer]), worker = static_cast<size_t>(cut.worker_of_stage[stage]);
    const Layout& layout = best.candidate.layout;
    const std::string& device = best.forecast.workers[worker].device;
    const auto [at, is_new] = profiles.try_emplace(device);
    if (is_new)
      at->second = profile_at(plan.request.problem.profile, {.device = device,
                                                             .precision = layout.precision.empty() ? "fp32" : layout.precision,
                                                             .tp = layout.tp,
                                                             .micro_batch = best.candidate.micro_batch(best.global_batch)});
    const LayerProfile& its = at->second.layers[layer];
    const double cost =
        its.forward_seconds * (best.candidate.recompute[layer] ? 2 : 1) + its.backward_input_seconds + its.backward_weight_seconds;
    seconds[stage] += cost, of_worker[worker] += cost;
  }
  Json stages = Json::array();
  for (size_t stage = 0; stage < cut.worker_of_stage.size(); ++stage) {
    const int worker = cut.worker_of_stage[stage];
    Json layers = Json::array();
    for (size_t layer = 0; layer < cut.stage_of.size(); ++layer)
      if (cut.stage_of[layer] == static_cast<int>(stage)) layers.push_back(layer);
    const double share = of_worker[static_cast<size_t>(worker)] > 0 ? seconds[stage] / of_worker[static_cast<size_t>(worker)] : 0;
    stages.push_back({{"layers", std::move(layers)}, {"devices", ranks_of_worker(plan, worker)}, {"load_seconds", share * load(worker)}});
  }
  return stages;
}

void print_json(const Plan& plan, const std::vector<WhatIf>& changes, const std::optional<SyncAdviceRecord>& sync) {
  const bool in_seconds = plan.request.objective != Objective::kMemory;
  Json json{{"event", "plan"},
            {"objective_seconds", in_seconds ? Json(plan.answer.best.objective) : Json(nullptr)},
            {"lower_bound_seconds", in_seconds ? Json(plan.answer.lower_bound) : Json(nullptr)},
            {"search_seconds", plan.answer.search_seconds}};
  json.update(to_json(plan));
  json["stages"] = stages_json(plan);
  Json what_if = Json::array();
  for (const WhatIf& change : changes)
    what_if.push_back({{"change", change.change},
                       {"feasible", change.feasible},
                       {"layout", change.feasible ? to_json(layout_of(plan.request.problem.profile, change.best)) : Json(nullptr)},
                       {"gain", change.feasible ? Json(change.gain) : Json(nullptr)},
                       {"sentence", change.sentence}});
  json["what_if"] = std::move(what_if);
  json["sync"] = sync ? to_json(*sync) : Json(nullptr);
  if (sync) json["sync"].erase("event");
  print_line(json);
}

int plan_model(const Arguments& given) {
  Arguments arguments = with_study(given);
  const std::optional<study::GoalCurve> curve = goal_curve_from(arguments);
  if (curve) arguments.config.global_batch = curve->useful_points().back().batch_size;  // The largest batch for which layers are measured.
  const Config& config = arguments.config;
  const std::string out = arguments.option("out", ""), page = arguments.option("report", "");
  check_distinct_files({{"--out", out}, {"--report", page}}, {{"--profile", arguments.option("profile", "")},
                                                              {"--cluster", arguments.option("cluster", "")},
                                                              {"--steps-curve", arguments.option("steps-curve", "")},
                                                              {"--calibration", arguments.option("calibration", "")}});
  for (const std::string& path : {out, page})
    if (!path.empty()) check_writable_file(path);  // Before the search, whose answer would be lost.
  Plan plan{.request = request_of(arguments, curve)};
  catch_first_stop_signal();
  static std::atomic<bool> stop{false};
  const auto look = [&] { return stop = stop_requested(); };
  try {
    SearchLine line(plan.request.objective, shows_progress(config));
    const auto show = [&](const SearchProgress& progress) {
      look();
      line.show(progress);
    };
    if (curve) {
      plan_to_goal(*curve, arguments.options.contains("cluster"), config.workers, show, &stop, plan);
    } else if (arguments.options.contains("cluster")) {
      plan.answer = search_plan(plan.request, show, &stop);
    } else {
      MachineAnswer found = search_machines(plan.request, config.workers, show, &stop);
      plan.reasons = machine_sentences(found);
      for (std::string& sentence : larger_machine_sentences(found)) plan.reasons.push_back(std::move(sentence));
      plan.request = std::move(found.request), plan.answer = std::move(found.answer);
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInfeasible) throw;
    if (!look()) {
      print_ladder_after(arguments, plan.request, "Nothing fits. What each fallback would take:");
      throw;
    }
    std::fprintf(stderr, "cohort: plan: stopped before a plan was found\n");
    return 130;
  }
  if (const std::string from = interval_source(plan); from != "default") plan.reasons.push_back("the interval of the step is from " + from);
  for (std::string& reason : reasons_of(plan.request, plan.answer)) plan.reasons.push_back(std::move(reason));
  const std::optional<SyncAdviceRecord> sync = advise_sync_for(plan);
  if (sync) plan.reasons.push_back("how workers wait for one another: " + sync->sentence);
  std::vector<WhatIf> changes;
  if (!arguments.options.contains("no-what-if") && !look())
    changes = what_if(plan.request, plan.answer, plan.request.search_seconds / 5, &stop, look);
  if (!out.empty()) write_file_atomically(out, to_json(plan).dump(1) + "\n");
  if (!page.empty()) report::write_plan_page(page, plan, changes);
  config.json ? print_json(plan, changes, sync) : print_text(arguments, plan, changes);
  if (!arguments.options.contains("no-what-if") && !look()) print_ladder_if_tight(arguments, plan);
  return 0;
}

int plan_ladder(const Arguments& given) {
  check_ladder_arguments(given);
  Arguments arguments = with_study(given);
  const std::optional<study::GoalCurve> curve = goal_curve_from(arguments);
  if (curve) arguments.config.global_batch = curve->useful_points().back().batch_size;
  const SearchRequest request = request_of(arguments, curve);
  catch_first_stop_signal();
  return print_ladder(arguments, request, "") ? 0 : static_cast<int>(ErrorCode::kInfeasible);
}

int run_plan(const Arguments& arguments) {
  if (arguments.options.contains("ladder")) return plan_ladder(arguments);
  if (arguments.options.contains("find-batch")) return plan_batch(arguments);
  return arguments.options.contains("instance") ? plan_instance(arguments) : plan_model(arguments);
}

}  // namespace

Verb plan_verb() {
  return {
      .name = "plan",
      .summary =
          "Finds the best way to spread a model over a cluster: replicas, cuts, divided layers, schedule, ZeRO, micro-batches, recompute, "
          "with what no plan can be below and why. The model is a profile in a file, or comes from its shapes alone.",
      .examples =
          {"cohort plan --profile examples/profiles/chain.json --cluster clusters/cpu-host.toml --global-batch 64",
           "cohort plan --model transformer:layers=24,width=2048,heads=16,vocabulary=50304 --context 1024 --cluster clusters/a100.toml "
           "--global-batch 512 --optimizer adamw",
           "cohort plan --model cnn --data fashion-mnist --find-batch --memory-limit 200000000",
           "cohort plan --instance examples/instances/branches.json --json"},
      .settings = {"model", "data", "context", "image-size", "workers", "layout", "weights", "global-batch", "accumulate", "optimizer",
                   "precision", "bucket-bytes", "memory-limit", "study", "inject", "json", "quiet"},
      .options =
          {{"profile", "FILE.json",
            "What the layers cost (docs/formats/profile.md); instead of --model. With --model and without --cluster: where to keep "
            "what is measured"},
           {"cluster", "FILE", "Devices, hosts and links, .toml or .json (docs/formats/cluster.md); left out: this machine, measured"},
           {"calibration", "FILE",
            "Where train keeps what its forecasts here were off by: the interval comes from there (default: cohort/calibration.jsonl "
            "in the user's cache; none: the default interval)"},
           {"objective", "NAME", "step-time (default), throughput, memory, time-to-goal (that of --study and --steps-curve)"},
           {"steps-curve", "FILE.csv",
            "Steps to a goal by batch size (batch_size,steps, or a study's): plans for the time to it, and chooses the batch"},
           {"compress", "", "Gradients may be compressed where that saves 5 % or more"},
           {"search-seconds", "X", "At most; the best plan so far is the answer then (default 10). Ctrl-C ends it too"},
           {"runners-up", "N", "Other plans to report (default 5)"},
           {"no-what-if", "", "Do not look what other links, memory and numbers of devices would change"},
           {"out", "FILE.json", "Writes the plan, which train --layout FILE.json runs (docs/formats/plan.md)"},
           {"report", "FILE.html", "Writes a page with the table, the timeline and what would change it"},
           {"ladder", "",
            "Each fallback for too little memory, with its forecast and the options to type, for --layout (left out: data parallelism)"},
           {"find-batch", "",
            "The largest micro-batch of --model and --data that fits in memory here, and the smallest that keeps a worker busy"},
           {"instance", "FILE.json", "A planner instance instead: layers, edges, devices, link, objective (docs/formats/instance.md)"}},
      .run = run_plan};
}

}  // namespace cohort
