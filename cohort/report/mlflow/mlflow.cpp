// The layout of mlflow/store/tracking/file_store.py, read there and held against its own reader by tests/multi_process/test_mlflow.py:
//   DIR/EXPERIMENT/meta.yaml
//   DIR/EXPERIMENT/RUN/meta.yaml, params/NAME (the value), tags/NAME, metrics/NAME (lines of "milliseconds value step"), artifacts/
// EXPERIMENT is a number and RUN 32 hexadecimal digits; both follow from the names, so that the same run comes into the same folder.
//
// It is made after the fact and not while the run trains: a store is thousands of small files, and what a training writes is bounded. Steps
// have no time in metrics.jsonl; they get the start of the run plus the step times until then.

#include "cohort/report/mlflow/mlflow.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <iterator>
#include <map>
#include <system_error>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/secrets.h"
#include "cohort/base/text/text.h"
#include "cohort/report/run_reader.h"
#include "cohort/report/summary.h"

namespace cohort::report {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostValueBytes = 6000;  // Of a parameter, as MLflow has it.

/// As `mlflow.entities.RunStatus` numbers them.
int status_of(RunState state) {
  constexpr int kRunning = 1, kFinished = 3, kFailed = 4, kKilled = 5;
  switch (state) {
    case RunState::kDone:
      return kFinished;
    case RunState::kFailed:
      return kFailed;
    case RunState::kInterrupted:
      return kKilled;
    case RunState::kOpen:
      break;
  }
  return kRunning;
}

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : printable(text)) out += c == '\'' ? std::string("''") : std::string(1, c == '\n' ? ' ' : c);
  return out + "'";
}

/// "2026-11-25T17:00:00Z" in milliseconds since 1970; 0 where it is none.
int64_t milliseconds_of(const std::string& started) {
  std::tm time{};
  if (!::strptime(started.c_str(), "%Y-%m-%dT%H:%M:%S", &time)) return 0;
  return static_cast<int64_t>(::timegm(&time)) * 1000;
}

/// A number of 18 digits, as MLflow makes them.
std::string experiment_id(const std::string& name) {
  const std::string key = hmac_sha256("cohort mlflow experiment", name);
  uint64_t number = 0;
  for (size_t i = 0; i < 8; ++i) number = number << 8 | static_cast<unsigned char>(key[i]);
  return std::to_string(100'000'000'000'000'000 + number % 900'000'000'000'000'000);
}

/// Lines of one metric: when, what, at which step.
class MetricFiles {
 public:
  void add(const std::string& name, int64_t milliseconds, double value, int64_t step) {
    if (!std::isfinite(value)) return;
    char line[96];
    std::snprintf(line, sizeof line, "%lld %.9g %lld\n", static_cast<long long>(milliseconds), value, static_cast<long long>(step));
    files_[name] += line;
  }
  void write(const fs::path& folder) const {
    for (const auto& [name, lines] : files_) write_file_atomically((folder / name).string(), lines);
  }

 private:
  std::map<std::string, std::string> files_;
};

/// Returns when the last of them was.
int64_t write_metrics(const RunRecord& run, int64_t started, const fs::path& folder) {
  MetricFiles files;
  std::map<int64_t, int64_t> when;  // Of steps.
  double seconds = 0;
  int64_t previous = 0;
  const auto now = [&] { return started + static_cast<int64_t>(1000 * seconds); };
  for (const StepRecord& step : run.steps) {
    if (std::isfinite(step.step_seconds)) seconds += step.step_seconds * static_cast<double>(step.step - previous);
    previous = step.step;
    when[step.step] = now();
    files.add("loss", now(), step.loss, step.step);
    files.add("learning_rate", now(), step.learning_rate, step.step);
    files.add("samples_per_second", now(), step.samples_per_second, step.step);
    files.add("gradient_norm", now(), step.gradient_norm, step.step);
  }
  for (const EvalRecord& eval : run.evals) {
    const auto at = when.lower_bound(eval.step);
    files.add("val_loss", at == when.end() ? now() : at->second, eval.val_loss, eval.step);
    files.add("val_error", at == when.end() ? now() : at->second, eval.val_error, eval.step);
    files.add("val_precision", at == when.end() ? now() : at->second, eval.val_precision, eval.step);
    for (const auto& [name, value] : eval.metrics) files.add("val_" + name, at == when.end() ? now() : at->second, value, eval.step);
  }
  int64_t end = now();
  if (run.done) {
    if (std::isfinite(run.done->seconds)) end = std::max(end, started + static_cast<int64_t>(1000 * run.done->seconds));
    files.add("test_loss", end, run.done->test_loss, run.done->step);
    files.add("test_error", end, run.done->test_error, run.done->step);
    files.add("test_precision", end, run.done->test_precision, run.done->step);
  }
  files.write(folder);
  return end;
}

void write_texts(const fs::path& folder, const std::vector<std::pair<std::string, std::string>>& values) {
  for (const auto& [name, value] : values)
    if (!value.empty()) write_file_atomically((folder / name).string(), printable(value.substr(0, kMostValueBytes)));
}

std::vector<std::pair<std::string, std::string>> parameters_of(const RunRecord& run) {
  std::vector<std::pair<std::string, std::string>> values;
  for (const ConfigValue& value : run.config) values.emplace_back(value.key, value.value);
  if (!run.start) return values;
  values.emplace_back("world_size", std::to_string(run.start->world_size));
  if (run.start->parameters) values.emplace_back("parameters", std::to_string(*run.start->parameters));
  return values;
}

std::vector<std::pair<std::string, std::string>> tags_of(const RunRecord& run, const std::string& name, const std::string& user) {
  const StartRecord start = run.start.value_or(StartRecord{});
  const Summary summary = summarize(run);
  return {{"mlflow.runName", name},
          {"mlflow.user", user},
          {"mlflow.source.type", "LOCAL"},
          {"mlflow.source.name", start.command},
          {"mlflow.source.git.commit", start.commit},
          {"mlflow.note.content", headline(run, summary).text()},
          {"cohort.version", start.version},
          {"cohort.layout", run.layout},
          {"cohort.reproduce_with", start.reproduce_with}};
}

void make_folders(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail_errno(ErrorCode::kFailed, "create", path.string(), error.value());
}

/// The highest folder of a path that is not there; empty where all of it is.
fs::path first_missing(fs::path path) {
  fs::path missing;
  for (std::error_code error; !fs::exists(path, error) && path.has_relative_path(); path = path.parent_path()) missing = path;
  return missing;
}

/// From `path` up to `last`, as far as nothing is in them.
void remove_empty_folders(fs::path path, const fs::path& last) {
  for (std::error_code error; fs::remove(path, error) && path != last;) path = path.parent_path();
}

/// Another report of the same run may put its own there between the two calls.
void replace_folder(const fs::path& from, const fs::path& to) {
  constexpr int kMostTries = 100;
  for (int i = 1;; ++i) {
    fs::remove_all(to);
    std::error_code error;
    fs::rename(from, to, error);
    if (!error) return;
    if (i == kMostTries || (error != std::errc::directory_not_empty && error != std::errc::file_exists))
      throw fs::filesystem_error("rename", from, to, error);
  }
}

void write_experiment(const fs::path& folder, const std::string& id, const std::string& name, int64_t now) {
  if (fs::exists(folder / "meta.yaml")) return;
  make_folders(folder);
  write_file_atomically((folder / "meta.yaml").string(),
                        concat("artifact_location: ", quoted("file://" + folder.string()), "\ncreation_time: ", now, "\nexperiment_id: '",
                               id, "'\nlast_update_time: ", now, "\nlifecycle_stage: active\nname: ", quoted(name), "\n"));
}

}  // namespace

std::string export_to_mlflow(const std::string& run_folder, const std::string& directory) {
  const RunRecord run = read_run(run_folder);
  const fs::path root = fs::absolute(directory).lexically_normal(), source = fs::absolute(run_folder).lexically_normal();
  if (std::error_code error; fs::exists(root, error) && !fs::is_directory(root, error))
    fail(ErrorCode::kBadInput, directory, ": is no folder; --mlflow takes the folder of MLflow's runs, as mlruns");
  const Summary summary = summarize(run);
  const std::string experiment = summary.model + (summary.data.empty() ? "" : " on " + summary.data), id = experiment_id(experiment);
  const std::string started = run.start ? run.start->started : "";
  const std::string name = source.filename().empty() ? source.parent_path().filename().string() : source.filename().string();
  const std::string run_id = hexadecimal(hmac_sha256("cohort mlflow run", source.string())).substr(0, 32);
  const int64_t began = milliseconds_of(started);
  const char* const login = std::getenv("USER");
  const std::string user = login ? login : "";
  const fs::path folder = root / id / run_id, temporary = root / id / concat(".", run_id, ".", ::getpid());
  const fs::path first_made = first_missing(root / id);
  const auto take_back = [&] {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    const bool is_alone = std::distance(fs::directory_iterator(root / id, ignored), fs::directory_iterator()) == 1;
    if (!first_made.empty() && is_alone) fs::remove(root / id / "meta.yaml", ignored);
    if (!first_made.empty()) remove_empty_folders(root / id, first_made);
  };
  try {
    write_experiment(root / id, id, experiment, began);
    for (const char* part : {"params", "metrics", "tags", "artifacts"}) make_folders(temporary / part);
    write_texts(temporary / "params", parameters_of(run));
    write_texts(temporary / "tags", tags_of(run, name, user));
    const int64_t end = write_metrics(run, began, temporary / "metrics");
    for (const char* file : {"report.html", "config.toml"})
      if (fs::exists(source / file)) fs::copy_file(source / file, temporary / "artifacts" / file);
    write_file_atomically((temporary / "meta.yaml").string(),
                          concat("artifact_uri: ", quoted("file://" + (folder / "artifacts").string()),
                                 "\nend_time: ", run.state == RunState::kOpen ? std::string("null") : std::to_string(end),
                                 "\nentry_point_name: ''\nexperiment_id: '", id, "'\nlifecycle_stage: active\nrun_id: ", quoted(run_id),
                                 "\nrun_name: ", quoted(name), "\nrun_uuid: ", quoted(run_id),
                                 "\nsource_name: ''\nsource_type: 4\nsource_version: ''\nstart_time: ", began,
                                 "\nstatus: ", status_of(run.state), "\ntags: []\nuser_id: ", quoted(user), "\n"));
    replace_folder(temporary, folder);
  } catch (const fs::filesystem_error& error) {
    take_back();
    fail_errno(ErrorCode::kFailed, "write", folder.string(), error.code().value());
  } catch (...) {
    take_back();
    throw;
  }
  return folder.string();
}

}  // namespace cohort::report
