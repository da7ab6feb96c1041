#include "cohort/bench/sync/sync_verb.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>

#include "cohort/base/fail.h"
#include "cohort/base/statistics.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/bench/sync/sync.h"

namespace cohort {
namespace {

constexpr const char* kModes = "step,async,async+rate:0.5,stale:2,queue,local:4,diloco:4";

Json or_null(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

void print_json(const SyncCell& cell) {
  std::printf("%s\n", Json{{"event", "cell"},
                           {"workload", cell.workload},
                           {"condition", cell.condition},
                           {"sync", cell.sync},
                           {"compress", cell.compress},
                           {"remedy", cell.remedy},
                           {"seed", cell.seed},
                           {"samples_per_second", cell.samples_per_second},
                           {"seconds_to_goal", or_null(cell.seconds_to_goal)},
                           {"samples_to_goal", or_null(cell.samples_to_goal)},
                           {"val_loss", or_null(cell.val_loss)},
                           {"val_error", or_null(cell.val_error)},
                           {"staleness_median", cell.staleness_median},
                           {"staleness_tail", cell.staleness_tail}}
                          .dump()
                          .c_str());
  std::fflush(stdout);
}

/// Before hours of others.
void check_modes(const std::vector<std::string>& modes) {
  const std::vector<std::string> known = {"step", "async", "stale", "queue", "local", "diloco"};
  for (const std::string& mode : modes) {
    const std::string name = mode.substr(0, mode.find_first_of(":/+"));
    if (std::find(known.begin(), known.end(), name) == known.end())
      fail(ErrorCode::kBadInput, "bench sync: --modes: no '", mode, "'", did_you_mean(name, known), "; there are: ", kModes);
  }
}

void check_once(const char* option, std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) fail(ErrorCode::kBadInput, "bench sync: --", option, " names ", *twice, " twice");
}

/// The first ends the bench after the child that it also ends; its folder is gone then.
void catch_first_interrupt() {
  struct sigaction action{};
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGINT, SIGTERM}) ::sigaction(signal, &action, nullptr);
}

/// The seeds of one mode under one condition.
void print_row(const std::vector<SyncCell>& seeds) {
  const auto middle = [&](double SyncCell::* number) {
    std::vector<double> values;
    for (const SyncCell& cell : seeds) values.push_back(cell.*number);
    return median(values);
  };
  const SyncCell& any = seeds.front();
  const double to_goal = middle(&SyncCell::seconds_to_goal);
  std::printf("%-12s %-7s %-22s %8.0f %11s %9s %9.4f %7.2f %% %5.0f %5.0f\n", any.workload.c_str(), any.condition.c_str(),
              any.mode().c_str(), middle(&SyncCell::samples_per_second),
              std::isfinite(to_goal) ? concat(std::round(100 * to_goal) / 100, " s").c_str() : "never",
              std::isfinite(to_goal) ? concat(std::llround(middle(&SyncCell::samples_to_goal))).c_str() : "-", middle(&SyncCell::val_loss),
              100 * middle(&SyncCell::val_error), middle(&SyncCell::staleness_median), middle(&SyncCell::staleness_tail));
  std::fflush(stdout);
}

}  // namespace

std::vector<VerbOption> bench_sync_options() {
  return {{"modes", "LIST", concat("sync: modes, compressed as async/int8, with a remedy as async+rate:0.5 (default ", kModes, ")")},
          {"conditions", "LIST", "sync: " + join(sync_conditions(), ", ") + " (default: all)"},
          {"seeds", "N", "sync: trainings of each mode under each condition (default 3)"}};
}

int bench_sync_verb(const Arguments& arguments) {
  const Config& given = arguments.config;
  const int workers = given.workers > 0 ? given.workers : 4;
  if (workers < 2) fail(ErrorCode::kBadInput, "bench sync: --workers ", workers, ": one worker waits for nobody; give 2 or more");
  const int64_t seeds = arguments.integer_option("seeds", 3, 1, 1000);
  const std::vector<std::string> workloads = split(arguments.option("workload", "cnn,transformer"), ','),
                                 conditions = split(arguments.option("conditions", join(sync_conditions(), ",")), ','),
                                 modes = split(arguments.option("modes", kModes), ',');
  for (const std::string& name : workloads) check_sync_workload(name);
  for (const std::string& name : conditions) check_sync_condition(name);
  check_modes(modes);
  for (const auto& [option, names] : {std::pair("workload", &workloads), std::pair("conditions", &conditions), std::pair("modes", &modes)})
    check_once(option, *names);
  catch_first_interrupt();
  std::vector<SyncCell> all;
  if (!given.json)
    std::printf("%-12s %-7s %-22s %8s %11s %9s %9s %9s %5s %5s\n", "workload", "workers", "mode", "samples/s", "to the goal", "samples",
                "val loss", "error", "late", "99 %");
  for (const std::string& name : workloads)
    for (const std::string& condition : conditions)
      for (const std::string& mode : modes) {
        std::vector<SyncCell> cells;
        for (int64_t seed = 1; seed <= seeds; ++seed) {
          cells.push_back(measure_sync(name, condition, mode, workers, arguments.was_given("steps") ? given.steps : 0, seed));
          if (given.json) print_json(cells.back());
        }
        if (!given.json) print_row(cells);
        all.insert(all.end(), cells.begin(), cells.end());
      }
  if (!given.json) std::printf("\n");
  for (const SyncSentence& sentence : sync_sentences(all)) {
    if (sentence.of == 0) continue;
    if (given.json)
      std::printf(
          "%s\n",
          Json{{"event", "sentence"}, {"sentence", sentence.sentence}, {"holds", sentence.holds}, {"of", sentence.of}}.dump().c_str());
    else std::printf("%s: %ld of %ld\n", sentence.sentence.c_str(), static_cast<long>(sentence.holds), static_cast<long>(sentence.of));
  }
  std::fflush(stdout);
  return 0;
}

}  // namespace cohort
