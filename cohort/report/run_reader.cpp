// Reads metrics.jsonl line by line. A resumed run appends to its file and repeats the steps after its checkpoint. So a resume event, or a
// step whose number does not increase, removes the records after it, and steps always increase. Values of config.toml are not checked,
// because a report must open runs of other versions too.

#include "cohort/report/run_reader.h"

#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <tuple>
#include <utility>
#include <variant>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/job/layout.h"
#include "cohort/record/run_event.h"

namespace cohort::report {
namespace {

constexpr size_t kMaxConfigBytes = 1 << 20;

struct Found {
  ConfigValue value;
  toml::source_position at;
};

/// The shortest text that reads back as the same number; toml++ writes 0.05 as 0.050000000000000003.
std::string shortest(double value) {
  char out[40];
  const auto [end, error] = std::to_chars(out, out + sizeof out, value);
  std::string text(out, end);
  if (std::isfinite(value) && text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

void collect(const toml::table& table, const std::string& prefix, std::vector<Found>& found) {
  for (const auto& [key, node] : table) {
    const std::string name = prefix + std::string(key.str());
    if (const toml::table* inner = node.as_table()) {
      collect(*inner, name + ".", found);
      continue;
    }
    std::ostringstream text;
    if (const auto* string = node.as_string()) text << string->get();
    else if (const auto* number = node.as_floating_point()) text << shortest(number->get());
    else node.visit([&](const auto& value) { text << value; });
    found.push_back({{name, text.str()}, node.source().begin});
  }
}

std::string layout_text(const std::string& json) {
  const Json layout = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (layout.is_string()) return layout.get<std::string>();
  if (!layout.is_object()) return "";
  const Json plain = to_json(Layout{});
  std::vector<std::string> parts;
  for (const auto& [key, value] : layout.items()) {
    if (plain.contains(key) && plain[key] == value) continue;
    parts.push_back(key + "=" + (value.is_string() ? value.get<std::string>() : value.dump()));
  }
  return join(parts, ", ");
}

/// Removes all records of `list` after `step`.
template <typename Record>
void drop_after(std::vector<Record>& list, int64_t step) {
  while (!list.empty() && list.back().step > step) list.pop_back();
}

/// Removes what was recorded after `step`.
void undo_after(RunRecord& run, int64_t step) {
  drop_after(run.steps, step);
  drop_after(run.evals, step);
  drop_after(run.noise, step);
  drop_after(run.checkpoints, step);
  drop_after(run.resumes, step);
}

void apply(RunRecord& run, StartRecord start) {
  run.layout = layout_text(start.layout);
  run.start = std::move(start);
  run.state = RunState::kOpen;
  run.done.reset();
  run.ranks.clear();
  run.pipeline.reset();
  run.forecast.reset();
  run.async.reset();
  run.sync_advice.reset();
}

void apply(RunRecord& run, ResumeRecord resume) {
  undo_after(run, resume.step);
  drop_after(run.changes, resume.step);
  run.resumes.push_back(std::move(resume));
  run.state = RunState::kOpen;
  run.done.reset();
}

void apply(RunRecord& run, ChangeRecord change) { run.changes.push_back(std::move(change)); }

void apply(RunRecord& run, ForecastRecord forecast) { run.forecast = std::move(forecast); }

void apply(RunRecord& run, PipelineRecord pipeline) { run.pipeline = std::move(pipeline); }

void apply(RunRecord& run, const StepRecord& step) {
  if (!run.steps.empty() && run.steps.back().step >= step.step) undo_after(run, step.step - 1);
  run.steps.push_back(step);
}

void apply(RunRecord& run, const EvalRecord& eval) {
  drop_after(run.evals, eval.step - 1);
  run.evals.push_back(eval);
}

void apply(RunRecord& run, const NoiseRecord& noise) {
  drop_after(run.noise, noise.step - 1);
  run.noise.push_back(noise);
}

void apply(RunRecord& run, CheckpointRecord checkpoint) { run.checkpoints.push_back(std::move(checkpoint)); }

void apply(RunRecord& run, const MissingLinesRecord& missing) { run.missing_lines += missing.lines; }

void apply(RunRecord& run, RanksRecord ranks) { run.ranks = std::move(ranks.ranks); }

void apply(RunRecord& run, AdviceRecord advice) { run.exchange_advice = std::move(advice.sentence); }

void apply(RunRecord& run, SyncAdviceRecord advice) { run.sync_advice = std::move(advice); }

void apply(RunRecord& run, WasteRecord waste) { run.waste = std::move(waste); }

void apply(RunRecord& run, AsyncRecord async) { run.async = std::move(async); }

void apply(RunRecord& run, ConfusionRecord confusion) { run.confusion = std::move(confusion); }

void apply(RunRecord& run, MistakesRecord mistakes) { run.mistakes = std::move(mistakes); }

void apply(RunRecord& run, SampleRecord sample) { run.sample = std::move(sample); }

void apply(RunRecord& run, DoneRecord done) {
  run.done = std::move(done);
  run.state = RunState::kDone;
}

void apply(RunRecord& run, const InterruptedRecord& /*interrupted*/) { run.state = RunState::kInterrupted; }

void apply(RunRecord& run, FailureRecord failure) {
  run.state = RunState::kFailed;
  run.failure = std::move(failure);
}

// The report does not use these.
void apply(RunRecord& /*run*/, const SharesRecord& /*shares*/) {}
void apply(RunRecord& /*run*/, const CheckpointFailedRecord& /*failed*/) {}

/// A parse error is thrown only if another line follows, as an incomplete last line is valid.
void read_metrics(const std::string& path, const std::atomic<bool>* cancelled, RunRecord& run) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error))
    fail(ErrorCode::kBadInput, path, ": no such file; a run folder has the metrics.jsonl that `cohort train` writes");
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(ErrorCode::kBadInput, path, ": cannot be opened for reading");
  std::optional<Error> broken;
  std::string text;
  for (int64_t number = 1; std::getline(file, text); ++number) {
    if (cancelled && *cancelled) return;
    if (trim(text).empty()) continue;
    if (broken) throw *broken;
    const std::string where = concat(path, ":", number);
    Json object;
    try {
      object = parse_strict_ordered_json(text, {.path = where});
    } catch (const Error& bad) {
      broken = bad;
      continue;
    }
    if (std::optional<RunEvent> event = read_event(object, where)) std::visit([&](auto& its) { apply(run, std::move(its)); }, *event);
  }
  if (file.bad()) fail(ErrorCode::kBadInput, path, ": cannot be read to its end");
}

/// Values in the order of the file. Error(kBadInput) with file and line for invalid TOML.
std::vector<ConfigValue> read_config_values(const std::string& path) {
  const std::string content = read_small_file(path, kMaxConfigBytes);
  std::vector<Found> found;
  try {
    collect(toml::parse(content, path), "", found);
  } catch (const toml::parse_error& error) {
    fail(ErrorCode::kBadInput, path, ":", error.source().begin.line, ": ", error.description());
  }
  // toml++ sorts tables by name; this restores the order of the file.
  std::stable_sort(found.begin(), found.end(),
                   [](const Found& a, const Found& b) { return std::tie(a.at.line, a.at.column) < std::tie(b.at.line, b.at.column); });
  std::vector<ConfigValue> values;
  for (Found& one : found) values.push_back(std::move(one.value));
  return values;
}

}  // namespace

RunRecord read_run(const std::string& run, const std::atomic<bool>* cancelled) {
  RunRecord record;
  record.folder = run;
  read_metrics(run + "/metrics.jsonl", cancelled, record);
  if (std::error_code error; std::filesystem::exists(run + "/config.toml", error)) record.config = read_config_values(run + "/config.toml");
  return record;
}

std::string config_value(const RunRecord& run, const std::string& key) {
  const auto at = std::find_if(run.config.begin(), run.config.end(), [&](const ConfigValue& value) { return value.key == key; });
  return at == run.config.end() ? "" : at->value;
}

}  // namespace cohort::report
