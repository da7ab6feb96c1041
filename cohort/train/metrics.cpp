#include "cohort/train/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/base64.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/text.h"
#include "cohort/base/text/toml_text.h"
#include "cohort/runlog/tensorboard.h"

namespace cohort {
namespace {

namespace fs = std::filesystem;

double wall_seconds() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

/// Rewrites `path`, by rename, with the lines for which `keep` is true. A last line without a line feed is dropped.
template <typename Keep>
void keep_lines(const std::string& path, Keep keep) {
  std::ifstream in(path);
  if (!in) return;
  const std::string temporary = temporary_name(path);
  try {
    const UniqueDescriptor out = open_file(temporary, O_WRONLY | O_CREAT | O_EXCL);
    std::string kept;
    const auto write_kept = [&] {
      write_all(out.get(), kept.data(), kept.size(), temporary);
      kept.clear();
    };
    for (std::string line; std::getline(in, line) && !in.eof();) {
      if (keep(line)) kept += line + '\n';
      if (kept.size() > size_t{1} << 20) write_kept();
    }
    if (in.bad()) fail(ErrorCode::kFailed, path, ": cannot be read to its end");
    write_kept();
    sync_descriptor(out.get(), temporary);
    if (::rename(temporary.c_str(), path.c_str()) != 0) fail_errno(ErrorCode::kFailed, "rename " + temporary + " to", path, errno);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

/// Records of the end of a run, which a resumed run writes again.
bool is_end_record(const std::string& event) {
  static const std::set<std::string> names = {
      DoneRecord::kEvent,   InterruptedRecord::kEvent, RanksRecord::kEvent,  ConfusionRecord::kEvent,  MistakesRecord::kEvent,
      SampleRecord::kEvent, AsyncRecord::kEvent,       AdviceRecord::kEvent, SyncAdviceRecord::kEvent, WasteRecord::kEvent};
  return names.contains(event);
}

/// Returns the events that the file has of step `last_step`, whose evaluation is also dropped if the run `evaluates_again`.
std::set<std::string> drop_lines_after(const fs::path& run, int64_t last_step, bool evaluates_again) {
  int64_t num_broken = 0;
  std::set<std::string> of_last_step;
  keep_lines(run / "metrics.jsonl", [&](const std::string& line) {
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) return ++num_broken, false;
    const std::string event = json.value("event", "");
    const bool has_step = json.contains("step") && json["step"].is_number_integer();
    if (has_step && json["step"].get<int64_t>() == last_step) of_last_step.insert(event);
    if (is_end_record(event)) return false;
    if (!has_step) return true;
    const auto step = json["step"].get<int64_t>();
    return step <= last_step && !(evaluates_again && step == last_step && event == EvalRecord::kEvent);
  });
  if (num_broken > 0)
    log_warning(concat((run / "metrics.jsonl").string(), ": ", num_broken, num_broken == 1 ? " line is" : " lines are",
                       " damaged (no JSON object) and left out from here on"));
  const std::string evaluation = concat(last_step, ",,");  // A row of an evaluation has no loss of a step.
  keep_lines(run / "metrics.csv", [&](const std::string& line) {
    if (evaluates_again && line.starts_with(evaluation)) return false;
    return line.starts_with("step") || std::strtoll(line.c_str(), nullptr, 10) <= last_step;
  });
  return of_last_step;
}

constexpr char kColumns[] =
    "step,loss,step_seconds,samples_per_second,data_seconds,compute_seconds,exchange_seconds,optimizer_seconds,learning_rate,val_loss,"
    "val_error";
constexpr char kPrecisionColumn[] = ",val_precision";

std::string first_line_of(const std::string& path) {
  std::string line;
  std::ifstream in(path);
  std::getline(in, line);
  return line;
}

}  // namespace

/// Counts what could not be written to an output.
class Metrics::Output {
 public:
  Output(std::string name, std::string unit) : name_(std::move(name)), unit_(std::move(unit)) {}

  /// Called after a write with "" or the reason of its failure. Warns when writing begins to fail, and when it works again.
  void count(const std::string& problem) {
    if (problem.empty() && is_failing_) log_warning(concat(name_, " can be written again; it lacks ", missing_, " ", unit_));
    if (!problem.empty() && !is_failing_) log_warning(problem + "; the training goes on, and what cannot be written is left out");
    is_failing_ = !problem.empty();
    if (is_failing_) ++missing_;
  }
  void count(int reason) { count(reason == 0 ? "" : concat("cannot write ", name_, ": ", std::generic_category().message(reason))); }
  int64_t missing() const { return missing_; }
  std::string lacks() const { return missing_ == 0 ? "" : concat(name_, " lacks ", missing_, " ", unit_); }

 private:
  std::string name_, unit_;
  bool is_failing_ = false;
  int64_t missing_ = 0;
};

struct Metrics::Outputs {
  Outputs(const fs::path& folder, int64_t resume_step, bool to_stdout_too)
      : jsonl_file((folder / "metrics.jsonl").string()),
        csv_file((folder / "metrics.csv").string()),
        jsonl(jsonl_file.path(), "lines"),
        csv(csv_file.path(), "lines"),
        events((folder / "events").string(), "groups of values"),
        to_stdout(to_stdout_too),
        tensorboard((folder / "events").string(), resume_step) {}

  void write_stdout(const std::string& text) {
    if (!to_stdout) return;
    errno = 0;
    const bool ok = std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
    standard.count(ok ? 0 : errno != 0 ? errno : EIO);
    if (!ok) std::clearerr(stdout);
  }
  void write_csv(const std::string& line) { csv.count(csv_file.append(line)); }
  /// Writes the line, and before it a record of the lines that could not be written: both or none.
  void write_jsonl(const std::string& line) {
    std::string text = line;
    if (jsonl.missing() > reported_missing) text = to_line(MissingLinesRecord{jsonl.missing() - reported_missing}) + line;
    const int reason = jsonl_file.append(text);
    if (reason == 0) reported_missing = jsonl.missing();
    jsonl.count(reason);
  }
  template <typename Write>
  void write_events(Write write) {
    try {
      write(tensorboard);
    } catch (const Error& error) {
      events.count(error.what());
    }
  }

  AppendFile jsonl_file, csv_file;
  Output jsonl, csv, events, standard{name_settings("the lines of --json on stdout"), "lines"};
  int64_t reported_missing = 0;
  bool to_stdout;
  TensorBoardWriter tensorboard;
};

Metrics::Metrics(const std::string& run, const ResumedAt& resumed, bool to_stdout, bool has_labels) : resume_step_(resumed.step) {
  if (to_stdout) std::setvbuf(stdout, nullptr, _IOLBF, 1 << 16);
  were_there_ = drop_lines_after(run, resumed.step, resumed.evaluates_again);
  outputs_ = std::make_unique<Outputs>(run, resumed.step, to_stdout);
  const std::string columns = first_line_of(outputs_->csv_file.path());
  has_precision_ = columns.starts_with(kColumns) ? columns.ends_with(kPrecisionColumn) : has_labels;
  if (outputs_->csv_file.bytes() == 0) outputs_->write_csv(concat(kColumns, has_precision_ ? kPrecisionColumn : "", "\n"));
}

Metrics::~Metrics() = default;

void Metrics::event(const RunEvent& event, bool to_stdout_too) {
  const std::string line = to_line(event);
  outputs_->write_jsonl(line);
  if (to_stdout_too) outputs_->write_stdout(line);
}

void Metrics::step(const StepRecord& step) {
  event(step);
  char row[256];
  std::snprintf(row, sizeof row, "%lld,%.9g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.9g,,%s\n", static_cast<long long>(step.step), step.loss,
                step.step_seconds, step.samples_per_second, step.data_seconds, step.compute_seconds, step.exchange_seconds,
                step.optimizer_seconds, step.learning_rate, has_precision_ ? "," : "");
  outputs_->write_csv(row);
  scalars(step.step,
          {{"train/loss", step.loss}, {"train/learning_rate", step.learning_rate}, {"speed/samples_per_second", step.samples_per_second}});
}

void Metrics::evaluation(const EvalRecord& evaluation) {
  event(evaluation);
  const auto& [step, loss, error, precision, unused, metrics] = evaluation;
  const bool known = !std::isnan(error);
  char row[128], error_text[32] = "", precision_text[32] = "";
  if (known) std::snprintf(error_text, sizeof error_text, "%.9g", error);
  if (has_precision_) precision_text[0] = ',';
  if (has_precision_ && std::isfinite(precision)) std::snprintf(precision_text, sizeof precision_text, ",%.9g", precision);
  std::snprintf(row, sizeof row, "%lld,,,,,,,,,%.9g,%s%s\n", static_cast<long long>(step), loss, error_text, precision_text);
  outputs_->write_csv(row);
  if (!is_in_events(step, EvalRecord::kEvent)) {
    scalars(step, {{"validation/loss", loss}});
    if (known) scalars(step, {{"validation/error", error}});
    if (std::isfinite(precision)) scalars(step, {{"validation/precision", precision}});
    for (const auto& [name, value] : metrics) scalars(step, {{("validation/" + name).c_str(), value}});
  }
  flush();
}

void Metrics::noise_scale(const NoiseRecord& noise) {
  event(noise);
  if (std::isfinite(noise.noise_scale)) scalars(noise.step, {{"train/noise_scale", noise.noise_scale}});
}

void Metrics::mistakes(const MistakesRecord& mistakes) {
  event(mistakes, /*to_stdout_too=*/false);
  if (is_in_events(mistakes.step, MistakesRecord::kEvent)) return;
  outputs_->write_events([&](TensorBoardWriter& writer) {
    for (const MistakeRecord& each : mistakes.pictures)
      writer.picture(concat("mistakes/", each.label, " taken for ", each.predicted, " (sample ", each.sample, ")"), mistakes.step,
                     from_base64(each.png).value_or(""), wall_seconds());
  });
}

void Metrics::begin_session(const std::vector<std::pair<std::string, std::string>>& settings) {
  std::vector<SessionSetting> parameters;
  for (const auto& [name, value] : settings) {
    if (const auto number = parse_number(value)) parameters.push_back({name, *number});
    else if (value == "true" || value == "false") parameters.push_back({name, value == "true"});
    else parameters.push_back({name, text_of_toml(value)});
  }
  outputs_->write_events([&](TensorBoardWriter& writer) { writer.begin_session(parameters, wall_seconds()); });
}

void Metrics::end_session(bool succeeded) {
  outputs_->write_events([&](TensorBoardWriter& writer) { writer.end_session(succeeded, wall_seconds()); });
}

/// Event files are not truncated, so those of a resumed run already have the step at which it continues.
bool Metrics::is_in_events(int64_t step, const char* event) const { return step == resume_step_ && were_there_.contains(event); }

void Metrics::scalars(int64_t step, const std::vector<std::pair<const char*, double>>& values) {
  outputs_->write_events([&](TensorBoardWriter& writer) {
    for (const auto& [name, value] : values) writer.scalar(name, step, value, wall_seconds());
  });
}

void Metrics::flush() {
  outputs_->write_events([this](TensorBoardWriter& writer) {
    if (writer.flush()) outputs_->events.count("");  // Data reached the system.
  });
}

std::string Metrics::finish() {
  flush();
  Outputs& out = *outputs_;
  // A network file system may report a full disk only now.
  for (auto* const late : {&out.jsonl_file, &out.csv_file})
    if (const int reason = late->sync(); reason != 0)
      log_warning(concat("cannot write ", late->path(), ": ", std::generic_category().message(reason)));
  std::vector<std::string> lacking;
  for (const Output* output : {&out.jsonl, &out.csv, &out.events, &out.standard})
    if (const std::string text = output->lacks(); !text.empty()) lacking.push_back(text);
  return join(lacking, ", ");
}

}  // namespace cohort
