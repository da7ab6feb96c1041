#include "bench/program/bench_verb.h"

#include <algorithm>
#include <cstdio>

#include "bench/program/peer.h"
#include "bench/program/step.h"
#include "cohort/base/fail.h"
#include "cohort/base/statistics.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/options/output.h"
#include "cohort/cli/options/verb.h"
#include "cohort/job/layout.h"
#include "cohort/job/option_rules.h"
#include "cohort/train/model/strategy_options.h"

namespace cohort {
namespace {

struct Measured {
  std::vector<double> step, floor, one_worker, exposed;
  std::string advice;
  std::vector<std::pair<std::string, std::vector<double>>> peers;  ///< Seconds of each mode: ddp, none, fsdp.
};

void print_results(const Arguments& arguments, const std::string& workload, const Layout& layout, const Measured& measured) {
  const int workers = layout.num_ranks();
  const auto line = [&](const std::string& system, int num_workers, double step, double floor) {
    Layout used = layout;
    used.dp = num_workers;
    if (arguments.config.json) {
      print_line(Json{{"workload", workload},
                      {"system", system},
                      {"workers", num_workers},
                      {"layout", to_json(used)},
                      {"step_seconds", step},
                      {"floor_seconds", floor}});
    } else {
      std::printf("%-10s %-16s %d workers  step %9.3f ms   floor %9.3f ms   %.2f of the floor\n", workload.c_str(), system.c_str(),
                  num_workers, 1e3 * step, 1e3 * floor, step / floor);
    }
    std::fflush(stdout);
  };
  const double floor = median(measured.floor), step = median(measured.step), one = median(measured.one_worker);
  line("cohort", workers, step, floor);
  line("one-worker", 1, one, one);
  double peer_floor = -1;
  for (const auto& [mode, seconds] : measured.peers)
    if (mode == "none") peer_floor = median(seconds);
  for (const auto& [mode, seconds] : measured.peers)
    if (mode != "none" && !seconds.empty()) line("pytorch-" + mode, workers, median(seconds), peer_floor);
  if (arguments.config.json && !measured.advice.empty())
    print_line(Json{{"event", "exchange_advice"}, {"workload", workload}, {"sentence", measured.advice}});
  else if (!measured.advice.empty()) std::printf("%-10s %s\n", workload.c_str(), measured.advice.c_str());
  if (!arguments.config.json)
    std::printf("%-10s %d workers make %.2f times the samples per second of one; the exchange shows for %.3f ms a step\n", workload.c_str(),
                workers, workers * one / step, 1e3 * median(measured.exposed));
}

int bench_step_verb(const Arguments& arguments) {
  const std::vector<std::string> workloads =
      arguments.options.contains("workload") ? split(arguments.option("workload", ""), ',') : bench_workloads();
  for (const std::string& workload : workloads) bench_workload(workload);
  const int64_t rounds = arguments.integer_option("rounds", 3, 1, 1000), steps = arguments.config.steps > 0 ? arguments.config.steps : 30;
  const int workers = arguments.config.workers > 0 ? arguments.config.workers : 2;
  Config config = arguments.config;
  if (!arguments.was_given("optimizer")) config.optimizer = "momentum";
  const Job job = resolve(config, workers);
  const Layout& layout = job.layout;
  if (layout.is_model_parallel())
    fail(ErrorCode::kBadInput, "bench step measures data parallelism, and --layout is ", config.layout,
         "; use dp, zero and compress, or `cohort bench pipeline`");
  if (!is_step(layout.sync))
    fail(ErrorCode::kBadInput, "bench step measures the exchange of every step, and --layout has sync=", layout.sync, "; use sync=step");
  check_options(job.situation({}));
  const StrategyOptions strategy = strategy_options(job);
  const std::string folder = peers_folder(arguments, "ddp.py"), python = peers_python(arguments);
  for (const std::string& workload : workloads) {
    Measured measured;
    if (!folder.empty()) measured.peers = {{"ddp", {}}, {"none", {}}};
    if (!folder.empty() && arguments.options.contains("fsdp")) measured.peers.push_back({"fsdp", {}});
    for (int64_t round = 0; round < rounds; ++round) {
      const StepTimes times = bench_step({.workload = workload,
                                          .strategy = strategy,
                                          .backend = arguments.config.backend,
                                          .precision = job.precision,
                                          .num_ranks = workers,
                                          .steps = static_cast<int>(steps)});
      measured.step.push_back(times.step_seconds);
      measured.floor.push_back(times.floor_seconds);
      measured.one_worker.push_back(times.one_worker_seconds);
      measured.exposed.push_back(times.exposed_seconds);
      measured.advice = times.advice;
      for (auto& [mode, seconds] : measured.peers) {
        const bool adam = config.optimizer == "adam" || config.optimizer == "adamw";
        const PeerStep peer = peer_step(folder, python, workers, "ddp.py", {workload, concat(steps), mode, adam ? "adam" : "momentum"},
                                        static_cast<double>(steps) * times.step_seconds);
        if (peer.seconds > 0) seconds.push_back(peer.seconds);
        else if (round == 0) log_warning(concat("PyTorch (", mode, ") ", peer.failure, "; it is left out"));
      }
    }
    print_results(arguments, workload, layout, measured);
  }
  return 0;
}

std::vector<VerbAction> bench_actions() {
  const std::vector<std::string> optimizer = {"optimizer", "momentum", "beta1", "beta2", "eps", "weight-decay"};
  const auto with_optimizer = [&](std::vector<std::string> names) {
    names.insert(names.end(), optimizer.begin(), optimizer.end());
    return names;
  };
  return {
      {.name = "step",
       .reads = with_optimizer({"workload", "rounds", "peers", "python", "fsdp", "layout", "workers", "steps", "weights", "bucket-bytes",
                                "backend", "precision", "json"})},
      {.name = "collectives", .reads = {"backends", "ops", "sizes", "worker-counts", "rounds", "workers", "json"}},
      {.name = "collectives", .mode = "barrier", .reads = {"backends", "worker-counts", "rounds", "workers", "json"}},
      {.name = "collectives", .mode = "faults", .reads = {"workers", "timeout", "backend", "json"}},
      {.name = "handover", .reads = {"rounds", "workers", "backend", "json"}},
      {.name = "messages", .reads = {"rounds", "json"}},
      {.name = "sync", .reads = {"workload", "modes", "conditions", "seeds", "workers", "steps", "json"}},
      {.name = "pipeline",
       .reads = with_optimizer({"workload", "rounds", "peers", "python", "microbatches", "schedules", "split", "trace", "workers", "steps",
                                "backend", "json"})},
      {.name = "pipeline",
       .mode = "delays",
       .reads = {"rounds", "microbatches", "schedules", "trace", "model", "workers", "steps", "backend", "json"}},
      {.name = "study",
       .reads = {"rounds", "peers", "python", "batch", "ratio", "data", "model", "optimizer", "lr", "steps", "context", "val-samples",
                 "json"}},
      {.name = "forecast", .most_words = 1000, .reads = {"format", "fit", "json"}},
      {.name = "plan",
       .most_words = 100'000,
       .reads = {"format", "devices", "memory", "bandwidth", "machines", "batch", "search-seed", "json"}},
  };
}

int run_bench(const Arguments& arguments) {
  using Run = int (*)(const Arguments&);
  const std::vector<std::pair<std::string, Run>> runs = {{"step", bench_step_verb},         {"collectives", bench_collectives_verb},
                                                         {"handover", bench_handover_verb}, {"messages", bench_messages_verb},
                                                         {"pipeline", bench_pipeline_verb}, {"study", bench_study_verb},
                                                         {"sync", bench_sync_verb},         {"plan", bench_plan_verb},
                                                         {"forecast", bench_forecast_verb}};
  std::vector<std::string> names;
  for (const auto& [name, run] : runs) {
    if (name == arguments.action) return run(arguments);
    names.push_back(name);
  }
  const std::string problem = arguments.action.empty() ? "no benchmark given" : concat("unknown benchmark '", arguments.action, "'");
  fail(ErrorCode::kBadInput, "bench: ", problem, did_you_mean(arguments.action, names), "; there are: ", join(names, " "));
}

}  // namespace

Verb bench_verb() {
  std::vector<VerbOption> options = {
      {"workload", "NAMES",
       "step: mlp-small, mlp, cnn, gpt; several with commas (default: all). pipeline: one of them (default gpt). sync: fc, cnn, "
       "transformer (default cnn,transformer)"},
      {"rounds", "N", "how often each system is measured, in turn (default 3)"},
      {"peers", "DIR",
       "step, pipeline, study: folder with ddp.py, pipeline.py, study.py and workloads.py (default bench/peers; none: no peers)"},
      {"python", "FILE", "step, pipeline, study: the Python that has torch (default .venv/bin/python)"},
      {"fsdp", "", "step: measure PyTorch's FSDP too"}};
  for (VerbOption& option : bench_collectives_options()) options.push_back(std::move(option));
  for (VerbOption& option : bench_pipeline_options()) options.push_back(std::move(option));
  for (VerbOption& option : bench_study_options()) options.push_back(std::move(option));
  for (VerbOption& option : bench_sync_options()) options.push_back(std::move(option));
  for (VerbOption& option : bench_plan_options()) options.push_back(std::move(option));
  for (VerbOption& option : bench_forecast_options()) options.push_back(std::move(option));
  return {.name = "bench",
          .summary =
              "Measures a training step, or the exchanges it is made of, beside their floor and beside peers, alternating in one run.\n"
              "plan and forecast train nothing: public planner instances solved, published steps forecast.",
          .examples = {"cohort bench step --workload mlp-small", "cohort bench step --peers none --layout zero=2 --json",
                       "cohort bench collectives --worker-counts 2,4", "cohort bench handover", "cohort bench messages",
                       "cohort bench pipeline --schedules 1f1b,zb-h1 --peers none", "cohort bench pipeline --delays", "cohort bench study",
                       "cohort bench sync --workload fc --seeds 1", "cohort bench plan --format cohort examples/instances/branches.json"},
          .positional_help = "step, collectives, handover, messages, pipeline, study, sync; plan FILE... or forecast FILE...",
          .settings = {"layout",  "workers",   "steps",    "weights", "bucket-bytes", "backend", "precision",
                       "timeout", "optimizer", "momentum", "beta1",   "beta2",        "eps",     "weight-decay",
                       "lr",      "model",     "data",     "context", "val-samples",  "json"},
          .options = std::move(options),
          .actions = bench_actions(),
          .exclusive = {{"workers", "worker-counts"}, {"barrier", "faults"}},
          .run = run_bench};
}

}  // namespace cohort
