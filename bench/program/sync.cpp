// Compares sync modes by trainings under the virtual clock (docs/guide/virtual_time.md), so
// gradients are real, and all numbers are the same on every machine.
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "bench/program/bench_verb.h"
#include "cohort/base/error.h"
#include "cohort/base/fail.h"
#include "cohort/base/statistics.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/options/output.h"
#include "cohort/plan/sync_advice.h"
#include "cohort/record/advice_records.h"

namespace cohort {
namespace {

/// One cell of the table: a sync mode under a condition.
struct SyncCell {
  std::string workload, condition;
  std::string sync, compress, remedy;  ///< Values of --layout and --remedy; "" for none.
  std::string mode() const;            ///< "async/int8+rate:0.5".
  int num_workers = 1;
  int64_t seed = 1;
  double samples_per_second = 0;                    ///< Throughput by the virtual clock.
  double seconds_to_goal = 0, samples_to_goal = 0;  ///< infinite: not reached.
  double val_loss = 0, val_error = 0;               ///< At the end, after as many samples as every mode.
  double staleness_median = 0, staleness_tail = 0;  ///< In pushes: half and 99 % of them are at most so late.
  std::vector<SyncAdviceRecord::Row> advised;       ///< The rows of the run's advice (sync and time_high only), step first.
};

/// Statements about asynchronous training, tested with the cells.
struct SyncSentence {
  std::string sentence;
  int64_t holds = 0, of = 0;  ///< Comparisons of two cells.
};

constexpr double kSlowFactor = 4;
constexpr double kInfinite = std::numeric_limits<double>::infinity();

struct Workload {
  const char *name, *model, *data, *optimizer, *goal;  // The goal is the least of "val_loss" or "val_error" that counts.
  double goal_value, lr;
  int64_t context, global_batch, steps, val_samples;
};
/// Steps and evaluations are multiples of 12, so that every H up to 4 exchanges before them.
constexpr Workload kWorkloads[] = {
    {"fc", "fc:hidden=32", "synthetic:1x8x8,classes=4,samples=2048,noise=2", "sgd", "val_error", 0.2, 0.1, 64, 64, 120, 500},
    {"cnn", "cnn:width=0.25", "fashion-mnist", "momentum", "val_error", 0.25, 0.02, 64, 128, 360, 2000},
    {"transformer", "transformer:width=48,layers=2,heads=2", "text:/usr/share/common-licenses", "adamw", "val_loss", 2.6, 0.003, 48, 64,
     360, 400},
};

const std::map<std::string, std::string>& clocks() {
  static const std::map<std::string, std::string> kClocks = {{"even", "speed=lognormal:0.05,link=0.1ms:10Gbit"},
                                                             {"slow", "link=0.1ms:10Gbit"},
                                                             {"pauses", "pauses=1:0.5,link=0.1ms:10Gbit"},
                                                             {"link", "speed=lognormal:0.05,link=1ms:100Mbit"}};
  return kClocks;
}

/// fc, cnn, transformer.
const std::vector<std::string>& sync_workloads() {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> names;
    for (const Workload& workload : kWorkloads) names.emplace_back(workload.name);
    return names;
  }();
  return kNames;
}

/// even, slow (the last worker 4 times slower), pauses (at random), link (1 ms, 100 Mbit/s).
const std::vector<std::string>& sync_conditions() {
  static const std::vector<std::string> kNames = {"even", "slow", "pauses", "link"};
  return kNames;
}

std::string clock_of(const std::string& condition, int num_workers) {
  return concat("workers=", num_workers, ",compute=0.02,", clocks().at(condition),
                condition == "slow" ? concat(",slow=", num_workers - 1, ":", kSlowFactor) : "");
}

const Workload& workload_of(const std::string& name) {
  for (const Workload& its : kWorkloads)
    if (name == its.name) return its;
  fail(ErrorCode::kBadInput, "bench sync: --workload: no '", name, "'", did_you_mean(name, sync_workloads()),
       "; there are: ", join(sync_workloads(), " "));
}

/// A temporary folder, removed with this object.
class Folder {
 public:
  Folder() {
    std::string path = (std::filesystem::temp_directory_path() / "cohort-bench-sync-XXXXXX").string();
    if (!::mkdtemp(path.data()))
      fail(ErrorCode::kEnvironment, "bench sync: no folder can be made in ", std::filesystem::temp_directory_path().string());
    path_ = path;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Runs `cohort train` of the program beside this one, as a user would, and fails with its error message where it fails.
void train_by_itself(const std::vector<std::string>& words) {
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "cohort";
  std::string command = concat("exec ", shell_quoted(program.string()), " train");
  for (const std::string& word : words) command += " " + shell_quoted(word);
  command += " 2>&1 >/dev/null";
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  if (!pipe) fail(ErrorCode::kEnvironment, "bench sync: no process can be started");
  std::string said, failure;
  std::array<char, 4096> line;
  while (std::fgets(line.data(), line.size(), pipe)) {
    said = line.data();
    if (said.ends_with('\n')) said.pop_back();
    if (said.starts_with("cohort: error: ")) failure = said.substr(15);
  }
  const int status = ::pclose(pipe);
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (code == 0) return;
  if (code >= 128) fail(ErrorCode::kInterrupted, "bench sync: interrupted; cells so far are above");
  fail(static_cast<ErrorCode>(code), failure.empty() ? said : failure);
}

double number_of(const Json& line, const char* key) {
  const Json value = line.value(key, Json());
  return value.is_number() ? value.get<double>() : kInfinite;
}

/// The mode that the advice after a run with sync=step takes, of those that were measured; empty where it gave none.
std::string advised_of(const std::map<std::string, const SyncCell*>& modes) {
  std::vector<SyncAdviceRecord::Row> measured = modes.at("step")->advised;
  std::erase_if(measured, [&](const SyncAdviceRecord::Row& row) { return !modes.contains(row.sync); });
  return measured.empty() ? "" : best_row(measured).sync;
}

std::tuple<std::string, std::string, int64_t> case_of(const SyncCell& cell) { return {cell.workload, cell.condition, cell.seed}; }

std::string SyncCell::mode() const { return concat(sync, compress.empty() ? "" : "/" + compress, remedy.empty() ? "" : "+" + remedy); }

/// Error(kBadInput) for an unknown name.
void check_sync_workload(const std::string& name) { workload_of(name); }

void check_sync_condition(const std::string& name) {
  if (!clocks().contains(name))
    fail(ErrorCode::kBadInput, "bench sync: --conditions: no '", name, "'", did_you_mean(name, sync_conditions()),
         "; there are: ", join(sync_conditions(), " "));
}

/// A whole training, in a process of this program's own. `mode`: SYNC, SYNC/COMPRESS, either with +REMEDY behind. `steps`: 0: the
/// workload's. The Error that it ends with.
SyncCell measure_sync(const std::string& name, const std::string& condition, const std::string& mode, int num_workers, int64_t steps,
                      int64_t seed) {
  const Workload& its = workload_of(name);
  const size_t plus = mode.find('+'), slash = std::min(mode.find('/'), plus);
  SyncCell cell{.workload = name,
                .condition = condition,
                .sync = mode.substr(0, slash),
                .compress = slash == plus ? "" : mode.substr(slash + 1, plus - slash - 1),
                .remedy = plus == std::string::npos ? "" : mode.substr(plus + 1),
                .num_workers = num_workers,
                .seed = seed,
                .seconds_to_goal = kInfinite,
                .samples_to_goal = kInfinite};
  const Folder folder;
  const std::string run = folder.path() + "/run";
  std::vector<std::string> words = {"--model",
                                    its.model,
                                    "--data",
                                    its.data,
                                    "--optimizer",
                                    its.optimizer,
                                    "--lr",
                                    concat(its.lr),
                                    "--global-batch",
                                    concat(its.global_batch),
                                    "--steps",
                                    concat(steps > 0 ? steps : its.steps),
                                    "--val-samples",
                                    concat(its.val_samples),
                                    "--eval-every",
                                    "12",
                                    "--log-every",
                                    "12",
                                    "--checkpoint-every",
                                    "1000000",
                                    "--threads",
                                    "1",
                                    "--quiet",
                                    "--seed",
                                    concat(seed),
                                    "--layout",
                                    concat("sync=", cell.sync, slash == plus ? "" : ",compress=" + cell.compress),
                                    "--virtual",
                                    clock_of(condition, num_workers),
                                    "--run",
                                    run};
  const bool is_text = std::string(its.data).starts_with("text:");
  if (is_text) words.insert(words.end(), {"--context", concat(its.context), "--sample-bytes", "0"});
  if (!cell.remedy.empty()) words.insert(words.end(), {"--remedy", cell.remedy});
  train_by_itself(words);
  std::ifstream lines(run + "/metrics.jsonl");
  for (std::string text; std::getline(lines, text);) {
    const Json line = Json::parse(text, nullptr, false);
    if (!line.is_object()) continue;
    const std::string event = line.value("event", "");
    if (event == "async") {
      cell.samples_per_second = number_of(line, "samples_per_virtual_second");
      cell.staleness_median = number_of(line, "staleness_median");
      cell.staleness_tail = number_of(line, "staleness_tail");
    } else if (event == "sync_advice") {
      for (const Json& row : line.value("rows", Json::array()))
        if (!row.contains("options")) cell.advised.push_back({.sync = row.value("sync", ""), .time_high = number_of(row, "time_high")});
    } else if (event == "eval") {
      cell.val_loss = number_of(line, "val_loss");
      cell.val_error = number_of(line, "val_error");
      if (cell.seconds_to_goal < kInfinite || number_of(line, its.goal) >= its.goal_value) continue;
      cell.seconds_to_goal = number_of(line, "virtual_seconds");
      cell.samples_to_goal = number_of(line, "step") * static_cast<double>(its.global_batch);
    }
  }
  return cell;
}

std::vector<SyncSentence> sync_sentences(const std::vector<SyncCell>& cells) {
  std::map<std::tuple<std::string, std::string, int64_t>, std::map<std::string, const SyncCell*>> all;  // Keyed by case and mode.
  for (const SyncCell& cell : cells)
    all[case_of(cell)][concat(cell.sync, cell.compress.empty() ? "" : "/", cell.remedy.empty() ? "" : "+")] = &cell;
  const auto with_both = [&](const std::string& a, const std::string& b, const std::function<bool(const SyncCell&, const SyncCell&)>& holds,
                             std::string sentence, const std::string& only = "") {
    SyncSentence out{.sentence = std::move(sentence)};
    for (const auto& [key, modes] : all) {
      if (!modes.contains(a) || !modes.contains(b) || (!only.empty() && std::get<1>(key) != only)) continue;
      ++out.of;
      out.holds += holds(*modes.at(a), *modes.at(b)) ? 1 : 0;
    }
    return out;
  };
  std::vector<SyncSentence> out = {
      with_both(
          "async", "step", [](const auto& a, const auto& b) { return a.samples_per_second > b.samples_per_second; },
          "asynchronous is faster: more samples a second"),
      with_both(
          "async", "step", [](const auto& a, const auto& b) { return a.val_loss > b.val_loss; },
          "synchronous ends more accurate: a smaller validation loss after as many samples"),
      with_both(
          "async", "step", [](const auto& a, const auto& b) { return b.seconds_to_goal <= a.seconds_to_goal; },
          "even workers: synchronous is sooner at the goal", "even"),
      with_both(
          "async", "step", [](const auto& a, const auto& b) { return a.seconds_to_goal < b.seconds_to_goal; },
          "uneven workers: asynchronous is sooner at the goal", "slow"),
      with_both(
          "async+", "async", [](const auto& a, const auto& b) { return a.val_loss < b.val_loss; },
          "the remedy for stale gradients is a smaller rate: a smaller validation loss with it")};
  // These statements compare several cases: the slowest worker, and the spread over seeds.
  SyncSentence slowest{.sentence = "an asynchronous update does not depend on the slowest worker: 90 % of the workers' speeds together"},
      stable{.sentence = "asynchronous is less stable: seeds end further apart"};
  std::map<std::pair<std::string, std::string>, std::map<std::string, std::pair<double, double>>> ranges;
  for (const auto& [key, modes] : all) {
    const auto& [workload, condition, seed] = key;
    for (const auto& [mode, cell] : modes) {
      auto [at, is_new] = ranges[{workload, condition}].try_emplace(mode, cell->val_loss, cell->val_loss);
      at->second = {std::min(at->second.first, cell->val_loss), std::max(at->second.second, cell->val_loss)};
    }
    const auto even = all.find({workload, "even", seed});
    if (condition != "slow" || even == all.end() || !modes.contains("async") || !even->second.contains("async")) continue;
    ++slowest.of;
    const SyncCell& with_slow = *modes.at("async");
    const double speeds =
        (with_slow.num_workers - 1 + 1 / kSlowFactor) / with_slow.num_workers;  // Relative to workers that are all equally fast.
    slowest.holds += with_slow.samples_per_second > 0.9 * speeds * even->second.at("async")->samples_per_second ? 1 : 0;
  }
  for (const auto& [key, modes] : ranges) {
    if (!modes.contains("async") || !modes.contains("step")) continue;
    const auto width = [&](const char* mode) { return modes.at(mode).second - modes.at(mode).first; };
    ++stable.of;
    stable.holds += width("async") > width("step") ? 1 : 0;
  }
  out.insert(out.begin() + 1, {slowest, stable});
  SyncSentence advice{.sentence = "the advice of train was right: no other mode was sooner at the goal by a tenth"};
  for (const auto& [key, modes] : all) {
    if (!modes.contains("step") || modes.size() < 2) continue;
    const std::string advised = advised_of(modes);
    if (advised.empty()) continue;
    double soonest = kInfinite;
    for (const auto& [mode, cell] : modes) soonest = std::min(soonest, cell->seconds_to_goal);
    if (soonest == kInfinite) continue;
    ++advice.of;
    advice.holds += modes.at(advised)->seconds_to_goal <= 1.1 * soonest ? 1 : 0;
  }
  out.push_back(advice);
  return out;
}

constexpr const char* kModes = "step,async,async+rate:0.5,stale:2,queue,local:4,diloco:4";

Json or_null(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

void print_json(const SyncCell& cell) {
  print_line(Json{{"event", "cell"},
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
                  {"staleness_tail", cell.staleness_tail}});
  std::fflush(stdout);
}

/// Checks names before hours of training.
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

/// The first signal also ends the child; the benchmark ends after it, with its folder removed.
void catch_first_interrupt() {
  struct sigaction action{};
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGINT, SIGTERM}) ::sigaction(signal, &action, nullptr);
}

/// Trains all seeds of one mode under one condition.
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
  if (workers < 2) fail(ErrorCode::kBadInput, "bench sync: --workers ", workers, ": one worker has none to wait for; give 2 or more");
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
