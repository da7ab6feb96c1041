#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "cohort/base/error.h"
#include "cohort/base/json.h"
#include "cohort/base/layout.h"
#include "cohort/base/log.h"
#include "cohort/base/statistics.h"
#include "cohort/base/text.h"
#include "cohort/cli/bench_collectives.h"
#include "cohort/cli/bench_handover.h"
#include "cohort/cli/verb.h"
#include "cohort/train/bench_step.h"
#include "cohort/train/optimizer.h"

namespace cohort {
namespace {

/// The folder with ddp.py and workloads.py: --peers, else bench/peers of the checkout this is run from. "" where there is none.
std::string peers_folder(const Arguments& arguments) {
  const std::string folder = arguments.option("peers", "bench/peers");
  if (folder == "none") return "";
  if (std::filesystem::exists(folder + "/ddp.py")) return folder;
  if (arguments.options.contains("peers")) fail(ErrorCode::kBadInput, "--peers ", folder, ": no ddp.py there");
  return "";
}

std::string shell_quote(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

/// Seconds of a step of PyTorch in `mode` (ddp, fsdp, none), or -1 when it does not run here.
double peer_step_seconds(const std::string& folder, const std::string& python, const std::string& workload, const std::string& mode,
                         const std::string& optimizer, int workers, int64_t steps) {
  const std::string command =
      concat("cd ", shell_quote(folder), " && OMP_NUM_THREADS=1 ", shell_quote(std::filesystem::absolute(python).string()),
             " -m torch.distributed.run --standalone --nproc-per-node ", workers, " ddp.py ", shell_quote(workload), " ", steps, " ", mode,
             " ", optimizer == "adam" || optimizer == "adamw" ? "adam" : "momentum", " 2>/dev/null");
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  if (!pipe) return -1;
  std::array<char, 4096> line;
  while (std::fgets(line.data(), line.size(), pipe.get())) {
    const Json json = Json::parse(line.data(), nullptr, false);
    if (json.is_object() && json.contains("step_ms")) return json["step_ms"].get<double>() / 1e3;
  }
  return -1;
}

struct Measured {
  std::vector<double> step, floor, one_worker, exposed;
  std::string advice;
  std::vector<std::pair<std::string, std::vector<double>>> peers;  ///< By mode: ddp, none, fsdp.
};

void print_results(const Arguments& arguments, const std::string& workload, int workers, const Measured& measured) {
  Layout layout = parse_layout(arguments.config.layout, workers);
  const auto line = [&](const std::string& system, int num_workers, double step, double floor) {
    Layout used = layout;
    used.dp = num_workers;
    if (arguments.config.json) {
      std::printf("%s\n", Json{{"workload", workload},
                               {"system", system},
                               {"workers", num_workers},
                               {"layout", to_json(used)},
                               {"step_seconds", step},
                               {"floor_seconds", floor}}
                              .dump()
                              .c_str());
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
    std::printf("%s\n", Json{{"event", "exchange_advice"}, {"workload", workload}, {"sentence", measured.advice}}.dump().c_str());
  else if (!measured.advice.empty()) std::printf("%-10s %s\n", workload.c_str(), measured.advice.c_str());
  if (!arguments.config.json)
    std::printf("%-10s %d workers make %.2f times the samples per second of one; the exchange shows for %.3f ms a step\n", workload.c_str(),
                workers, workers * one / step, 1e3 * median(measured.exposed));
}

int bench_step_verb(const Arguments& arguments) {
  const std::vector<std::string> workloads =
      arguments.options.contains("workload") ? split(arguments.option("workload", ""), ',') : bench_workloads();
  for (const std::string& workload : workloads)
    if (std::find(bench_workloads().begin(), bench_workloads().end(), workload) == bench_workloads().end())
      fail(ErrorCode::kBadInput, "bench step: no workload '", workload, "'", did_you_mean(workload, bench_workloads()),
           "; workloads: ", join(bench_workloads(), " "));
  const int64_t rounds = arguments.integer_option("rounds", 3, 1, 1000), steps = arguments.config.steps > 0 ? arguments.config.steps : 30;
  const int workers = arguments.config.workers > 0 ? arguments.config.workers : 2;
  const std::string folder = peers_folder(arguments),
                    python = arguments.option("python", std::filesystem::exists(".venv/bin/python") ? ".venv/bin/python" : "python3");
  if (folder.empty() && arguments.option("peers", "") != "none")
    log_info("no bench/peers here: PyTorch is not measured beside (--peers DIR names the folder)");
  Config config = arguments.config;
  if (!arguments.was_given("optimizer")) config.optimizer = "momentum";
  const StrategyOptions strategy = strategy_options(config, parse_layout(config.layout, workers));
  for (const std::string& workload : workloads) {
    Measured measured;
    if (!folder.empty()) measured.peers = {{"ddp", {}}, {"none", {}}};
    if (!folder.empty() && arguments.options.contains("fsdp")) measured.peers.push_back({"fsdp", {}});
    for (int64_t round = 0; round < rounds; ++round) {
      const StepTimes times = bench_step({.workload = workload,
                                          .strategy = strategy,
                                          .backend = arguments.config.backend,
                                          .precision = parse_precision(arguments.config.precision),
                                          .num_ranks = workers,
                                          .steps = static_cast<int>(steps)});
      measured.step.push_back(times.step_seconds);
      measured.floor.push_back(times.floor_seconds);
      measured.one_worker.push_back(times.one_worker_seconds);
      measured.exposed.push_back(times.exposed_seconds);
      measured.advice = times.advice;
      for (auto& [mode, seconds] : measured.peers) {
        const double peer = peer_step_seconds(folder, python, workload, mode, config.optimizer, workers, steps);
        if (peer > 0) seconds.push_back(peer);
        else if (round == 0) log_warning(concat("PyTorch (", mode, ") did not run with ", python, "; it is left out"));
      }
    }
    print_results(arguments, workload, workers, measured);
  }
  return 0;
}

int run_bench(const Arguments& arguments) {
  const std::string what = arguments.positional.empty() ? "" : arguments.positional.front();
  if (what == "step") return bench_step_verb(arguments);
  if (what == "collectives") return bench_collectives_verb(arguments);
  if (what == "handover") return bench_handover_verb(arguments);
  if (what == "sync" || what == "plan" || what == "forecast")
    fail(ErrorCode::kBadInput, "bench ", what, " is not built yet; there are: bench step, bench collectives, bench handover");
  fail(ErrorCode::kBadInput, "bench: say what to measure: bench step, bench collectives or bench handover");
}

}  // namespace

Verb bench_verb() {
  std::vector<VerbOption> options = {{"workload", "NAMES", "step: mlp-small, mlp, cnn, gpt; several with commas (default: all)"},
                                     {"rounds", "N", "how often each system is measured, in turn (default 3)"},
                                     {"peers", "DIR", "step: folder with ddp.py and workloads.py (default bench/peers; none: no peers)"},
                                     {"python", "FILE", "step: the Python that has torch (default .venv/bin/python)"},
                                     {"fsdp", "", "step: measure PyTorch's FSDP too"}};
  for (VerbOption& option : bench_collectives_options()) options.push_back(std::move(option));
  return {
      .name = "bench",
      .summary = "Measures a training step, or the exchanges it is made of, beside their floor and beside peers, alternating in one run.",
      .examples = {"cohort bench step", "cohort bench step --workload mlp-small,cnn --rounds 5 --steps 50 --optimizer adam",
                   "cohort bench step --peers none --layout zero=2 --json", "cohort bench collectives --worker-counts 2,4",
                   "cohort bench handover"},
      .positional_help = "step, collectives or handover",
      .takes_settings = true,
      .options = std::move(options),
      .run = run_bench};
}

}  // namespace cohort
