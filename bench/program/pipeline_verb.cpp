#include "bench/program/bench_verb.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "bench/program/peer.h"
#include "bench/program/pipeline.h"
#include "bench/program/step.h"
#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/statistics.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/options/output.h"
#include "cohort/job/option_rules.h"
#include "cohort/train/model/strategy_options.h"

namespace cohort {
namespace {

const char* const kSchedules = "gpipe,1f1b,zb-h1,zb-v,interleaved:2,bfs:2";
constexpr int kMaxWorkers = 64, kMaxMicroBatches = 4096;

double forecast_error(const PipelineTimes& times) { return std::abs(times.predicted_seconds - times.step_seconds) / times.step_seconds; }

/// The medians of all numbers over rounds.
PipelineTimes median_of(const std::vector<PipelineTimes>& rounds) {
  PipelineTimes middle = rounds.back();
  const auto middle_of = [&](double PipelineTimes::* number) {
    std::vector<double> values;
    for (const PipelineTimes& round : rounds) values.push_back(round.*number);
    middle.*number = median(values);
  };
  for (double PipelineTimes::* number : {&PipelineTimes::step_seconds, &PipelineTimes::predicted_seconds, &PipelineTimes::bubble,
                                         &PipelineTimes::predicted_bubble, &PipelineTimes::theoretical_bubble})
    middle_of(number);
  return middle;
}

void print_at_once(const Json& line) {
  print_line(line);
  std::fflush(stdout);
}

Json line_of(const std::string& workload, const PipelineTimes& times) {
  return Json{{"workload", workload},
              {"system", "cohort"},
              {"workers", times.layout.pp},
              {"layout", to_json(times.layout)},
              {"step_seconds", times.step_seconds},
              {"predicted_seconds", times.predicted_seconds},
              {"forecast_error", forecast_error(times)},
              {"bubble", times.bubble},
              {"predicted_bubble", times.predicted_bubble},
              {"theoretical_bubble", times.theoretical_bubble}};
}

void print_head() {
  std::printf("%-28s %10s %10s %7s   %6s %9s %6s\n", "", "step ms", "forecast", "off by", "bubble", "forecast", "theory");
}

void print_row(const std::string& name, const PipelineTimes& times) {
  std::printf("%-28s %10.3f %10.3f %5.1f %%   %6.3f %9.3f %6.3f\n", name.c_str(), 1e3 * times.step_seconds, 1e3 * times.predicted_seconds,
              100 * forecast_error(times), times.bubble, times.predicted_bubble, times.theoretical_bubble);
  std::fflush(stdout);
}

/// The path of a trace: PREFIX-1f1b.json and so on.
void write_traces(const Arguments& arguments, const std::vector<PipelineTimes>& all) {
  const std::string prefix = arguments.option("trace", "");
  for (const PipelineTimes& times : all) {
    if (prefix.empty()) return;
    std::string name = times.layout.schedule;
    std::replace(name.begin(), name.end(), ':', '-');
    write_file_atomically(concat(prefix, "-", name, ".json"), times.trace + "\n");
  }
}

int run_delays(const Arguments& arguments, const BenchDelaysOptions& defaults) {
  const bool json = arguments.config.json;
  std::vector<int> worker_counts = {2, 4, 8};
  if (arguments.config.workers > 0) worker_counts = {arguments.config.workers};
  std::vector<double> errors, bubble_differences;
  for (const int workers : worker_counts) {
    BenchDelaysOptions options = defaults;
    options.num_ranks = workers;
    if (!json) std::printf("sleeping layers, %d workers, %d micro-batches\n", workers, options.num_micro_batches), print_head();
    const std::vector<PipelineTimes> all = bench_pipeline_delays(options);
    write_traces(arguments, all);
    for (const PipelineTimes& times : all) {
      errors.push_back(forecast_error(times));
      bubble_differences.push_back(std::abs(times.bubble - times.predicted_bubble));
      if (json) print_at_once(line_of("delays", times));
      else print_row(times.layout.schedule, times);
    }
  }
  if (json)
    print_at_once(
        {{"event", "delays"}, {"median_forecast_error", median(errors)}, {"median_bubble_difference", median(bubble_differences)}});
  else
    std::printf("median over all: steps are %.2f %% off their simulation, bubbles %.4f\n", 100 * median(errors),
                median(bubble_differences));
  return 0;
}

/// split=even beside split=auto, alternating.
int run_split_delays(const Arguments& arguments, BenchDelaysOptions options) {
  const std::string& model = arguments.config.model;
  options.num_ranks = arguments.config.workers > 0 ? arguments.config.workers : 4;
  const int64_t rounds = arguments.integer_option("rounds", 3, 1, 1000);
  std::vector<std::vector<PipelineTimes>> by_split(2);
  for (int64_t round = 0; round < rounds; ++round) {
    const std::vector<PipelineTimes> both = bench_split_delays(model, options);
    for (size_t i = 0; i < both.size(); ++i) by_split[i].push_back(both[i]);
  }
  if (!arguments.config.json)
    std::printf("%s, %d workers that sleep as long as its layers compute, %d micro-batches\n", model.c_str(), options.num_ranks,
                options.num_micro_batches),
        print_head();
  std::vector<double> seconds;
  for (const std::vector<PipelineTimes>& all : by_split) {
    const PipelineTimes times = median_of(all);
    seconds.push_back(times.step_seconds);
    if (arguments.config.json) print_at_once(line_of(model, times));
    else print_row("split=" + times.layout.split, times);
  }
  if (arguments.config.json)
    print_at_once({{"event", "split"}, {"model", model}, {"workers", options.num_ranks}, {"auto_of_even", seconds[1] / seconds[0]}});
  else std::printf("auto takes %.3f of even\n", seconds[1] / seconds[0]);
  return 0;
}

struct Peer {
  std::string schedule;
  std::vector<double> seconds;
};

struct Measured {
  std::vector<double> one_worker;
  std::vector<std::vector<PipelineTimes>> schedules;  // Indexed by schedule and round.
  std::vector<Peer> peers;
};

Measured measure(const Arguments& arguments, const BenchPipelineOptions& options) {
  const int64_t rounds = arguments.integer_option("rounds", 3, 1, 1000);
  const std::string folder = peers_folder(arguments, "pipeline.py"), python = peers_python(arguments);
  Measured measured;
  measured.schedules.resize(options.schedules.size());
  // The script knows this workload only.
  if (!folder.empty() && options.workload == "gpt") measured.peers = {{"gpipe", {}}, {"1f1b", {}}};
  else if (!folder.empty()) log_info("PyTorch's pipelining is measured beside the workload gpt alone");
  for (int64_t round = 0; round < rounds; ++round) {
    BenchPipelineTimes times = bench_pipeline(options);
    if (round + 1 == rounds) write_traces(arguments, times.schedules);
    measured.one_worker.push_back(times.one_worker_seconds);
    for (size_t i = 0; i < times.schedules.size(); ++i) measured.schedules[i].push_back(std::move(times.schedules[i]));
    for (Peer& peer : measured.peers) {
      const PeerStep step =
          peer_step(folder, python, options.num_ranks, "pipeline.py",
                    {peer.schedule, concat(options.num_micro_batches), concat(options.steps)}, options.steps * measured.one_worker.back());
      if (step.seconds > 0) peer.seconds.push_back(step.seconds);
      else if (round == 0) log_warning(concat("PyTorch's pipelining (", peer.schedule, ") ", step.failure, "; it is left out"));
    }
  }
  return measured;
}

void print_results(const Arguments& arguments, const BenchPipelineOptions& options, const Measured& measured) {
  const double one = median(measured.one_worker), ideal = one / options.num_ranks;
  const bool json = arguments.config.json;
  if (!json) {
    std::printf("%s, %d workers, %d micro-batches: one worker takes %.3f ms, %d at best %.3f ms\n", options.workload.c_str(),
                options.num_ranks, options.num_micro_batches, 1e3 * one, options.num_ranks, 1e3 * ideal);
    print_head();
  }
  for (const std::vector<PipelineTimes>& rounds : measured.schedules) {
    const PipelineTimes times = median_of(rounds);
    if (!json) {
      print_row(times.layout.schedule, times);
      continue;
    }
    Json line = line_of(options.workload, times);
    line["one_worker_seconds"] = one;
    line["ideal_seconds"] = ideal;
    print_at_once(line);
  }
  if (json) print_at_once({{"workload", options.workload}, {"system", "one-worker"}, {"workers", 1}, {"step_seconds", one}});
  for (const Peer& peer : measured.peers) {
    if (peer.seconds.empty()) continue;
    const std::string system = "pytorch-pipelining-" + peer.schedule;
    if (json)
      print_at_once({{"workload", options.workload},
                     {"system", system},
                     {"workers", options.num_ranks},
                     {"microbatches", options.num_micro_batches},
                     {"step_seconds", median(peer.seconds)}});
    else std::printf("%-28s %10.3f\n", system.c_str(), 1e3 * median(peer.seconds));
  }
}

}  // namespace

std::vector<VerbOption> bench_pipeline_options() {
  return {{"microbatches", "M", "pipeline: micro-batches of a step (default 4; with --delays 8)"},
          {"schedules", "LIST", concat("pipeline: schedules, with commas (default ", kSchedules, ")")},
          {"split", "HOW", "pipeline: where the model is cut: auto (default), even, or first layers of the stages (3/5)"},
          {"delays", "",
           "pipeline: layers that sleep, on 2, 4 and 8 workers, beside their simulation; with --model NAME as long as that model's layers "
           "compute here, split=even beside split=auto (default 4 workers)"},
          {"trace", "PREFIX", "pipeline: write each schedule's last step as PREFIX-SCHEDULE.json; Perfetto opens them"}};
}

int bench_pipeline_verb(const Arguments& arguments) {
  const std::vector<std::string> schedules = split(arguments.option("schedules", kSchedules), ',');
  const bool delays = arguments.options.contains("delays");
  const int num_micro_batches = static_cast<int>(arguments.integer_option("microbatches", delays ? 8 : 4, 1, kMaxMicroBatches));
  if (arguments.config.workers == 1 || arguments.config.workers > kMaxWorkers)
    fail(ErrorCode::kBadInput, "bench pipeline: --workers ", arguments.config.workers, "; a pipeline has 2 to ", kMaxWorkers);
  const int64_t steps = arguments.config.steps;
  if (delays) {
    for (const char* unread : {"rounds", "trace", "schedules"})
      if (arguments.options.contains(unread) && arguments.was_given("model") != (unread == std::string("rounds")))
        fail(ErrorCode::kBadInput, "bench pipeline --delays ", arguments.was_given("model") ? "with" : "without",
             " --model does not read --", unread, "; leave it out");
    BenchDelaysOptions options{.schedules = schedules, .backend = arguments.config.backend, .num_micro_batches = num_micro_batches};
    if (steps > 0) options.steps = static_cast<int>(std::min<int64_t>(steps, 1000));
    return arguments.was_given("model") ? run_split_delays(arguments, options) : run_delays(arguments, options);
  }
  Config config = arguments.config;
  if (!arguments.was_given("optimizer")) config.optimizer = "momentum";
  check_options({.config = config, .layout = {.pp = 2}, .num_ranks = 2});
  BenchPipelineOptions options{.workload = arguments.option("workload", "gpt"),
                               .schedules = schedules,
                               .split = arguments.option("split", "auto"),
                               .rule = update_rule(config),
                               .backend = config.backend,
                               .num_ranks = config.workers > 0 ? config.workers : 2,
                               .num_micro_batches = num_micro_batches};
  if (steps > 0) options.steps = static_cast<int>(std::min<int64_t>(steps, 1 << 20));
  bench_workload(options.workload);
  print_results(arguments, options, measure(arguments, options));
  return 0;
}

}  // namespace cohort
