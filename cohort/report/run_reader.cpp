// metrics.jsonl line by line. A run that is stopped and resumed appends to its file; steps after the checkpoint that it went on from were
// undone and happen again. So a resume, or a step whose number does not rise, takes back what was recorded after it, and the lists always
// rise.

#include "cohort/report/run_reader.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/job/layout.h"
#include "cohort/report/config_reader.h"
#include "cohort/report/json_line.h"

namespace cohort::page {
namespace {

std::string layout_text(const Json& layout) {
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

/// Takes back all records of `list` after `step`.
template <typename Record>
void drop_after(std::vector<Record>& list, int64_t step) {
  while (!list.empty() && list.back().step > step) list.pop_back();
}

void read_start(const JsonLine& line, const Json& object, RunRecord& run) {
  StartRecord start;
  start.world_size = line.required_count("world_size");
  if (object.contains("layout")) start.layout = layout_text(object["layout"]);
  if (const Json* division = line.object("tensor_parallel")) start.tensor_parallel = JsonLine(*division, line.where()).text("sentence");
  start.parameters = line.count("parameters");
  start.train_samples = line.count("train_samples");
  start.global_batch = line.count("global_batch");
  start.steps = line.count("steps");
  start.model = line.text("model");
  start.data = line.text("data");
  start.version = line.text("version");
  start.torch = line.text("torch");
  start.host = line.text("host");
  start.started = line.text("started");
  start.has_own_loss = line.text("loss") == "own";
  run.start = std::move(start);
  run.state = RunState::kOpen;
  run.done.reset();
  run.ranks.clear();
  run.pipeline.reset();
}

void read_step(const JsonLine& line, RunRecord& run) {
  StepRecord step;
  step.step = line.required_count("step");
  step.loss = line.number("loss");
  step.step_seconds = line.number("step_seconds");
  step.samples_per_second = line.number("samples_per_second");
  step.data_seconds = line.number("data_seconds");
  step.compute_seconds = line.number("compute_seconds");
  step.exchange_seconds = line.number("exchange_seconds");
  step.optimizer_seconds = line.number("optimizer_seconds");
  step.learning_rate = line.number("learning_rate");
  step.gradient_norm = line.number("gradient_norm");
  if (!run.steps.empty() && run.steps.back().step >= step.step) {
    drop_after(run.steps, step.step - 1);
    drop_after(run.evals, step.step - 1);
    drop_after(run.noise, step.step - 1);
    drop_after(run.checkpoints, step.step - 1);
    drop_after(run.resumes, step.step - 1);
  }
  run.steps.push_back(step);
}

void read_resume(const JsonLine& line, RunRecord& run) {
  const int64_t step = line.required_count("step");
  drop_after(run.steps, step);
  drop_after(run.evals, step);
  drop_after(run.noise, step);
  drop_after(run.checkpoints, step);
  drop_after(run.resumes, step);
  drop_after(run.changes, step);
  run.resumes.push_back({step, line.text("from")});
  run.state = RunState::kOpen;
  run.done.reset();
}

void read_eval(const JsonLine& line, RunRecord& run) {
  const EvalRecord eval{line.required_count("step"), line.number("val_loss"), line.number("val_error")};
  drop_after(run.evals, eval.step - 1);
  run.evals.push_back(eval);
}

void read_noise(const JsonLine& line, RunRecord& run) {
  const NoiseRecord noise{.step = line.required_count("step"),
                          .small_batch = line.number("small_batch"),
                          .large_batch = line.number("large_batch"),
                          .small_squared = line.number("small_squared"),
                          .large_squared = line.number("large_squared"),
                          .gradient_squared = line.number("gradient_squared"),
                          .trace = line.number("trace"),
                          .noise_scale = line.number("noise_scale")};
  drop_after(run.noise, noise.step - 1);
  run.noise.push_back(noise);
}

PartRecord read_part(const Json& object, const std::string& where) {
  const JsonLine line(object, where);
  PartRecord part;
  part.data = line.text("data");
  part.pipe = line.text("pipe");
  part.tensor = line.text("tensor");
  part.layers = line.texts("layers");
  if (const Json* stages = line.array("stages")) part.stages = JsonLine::counts(*stages, where, "'stages'");
  part.waited_seconds = line.number("waited_seconds");
  part.most_kept_micro_batches = line.count("most_kept_micro_batches");
  return part;
}

void read_pipeline(const JsonLine& line, RunRecord& run) {
  PipelineRecord pipeline;
  pipeline.schedule = line.text("schedule");
  pipeline.micro_batches = line.count("microbatches");
  pipeline.predicted_step_seconds = line.number("predicted_step_seconds");
  pipeline.predicted_bubble = line.number("predicted_bubble");
  pipeline.chart_svg = line.text("chart_svg");
  if (const Json* stages = line.array("stages"))
    for (const Json& element : *stages) {
      const JsonLine one(element, line.where());
      pipeline.stages.push_back({one.texts("layers"), one.count("worker"), one.number("forward_seconds"),
                                 one.number("backward_input_seconds"), one.number("backward_weight_seconds")});
    }
  run.pipeline = std::move(pipeline);
}

void read_ranks(const JsonLine& line, RunRecord& run) {
  const Json* list = line.array("ranks");
  if (!list) fail(ErrorCode::kBadInput, line.where(), ": 'ranks': expected a list, found nothing");
  run.ranks.clear();
  for (const Json& element : *list) {
    const JsonLine one(element, line.where());
    RankRecord rank;
    rank.rank = one.required_count("rank");
    rank.host = one.text("host");
    rank.pid = one.count("pid");
    rank.samples = one.count("samples");
    rank.peak_memory_bytes = one.count("peak_memory_bytes");
    rank.weight_bytes = one.count("predicted_weight_bytes");
    rank.gradient_bytes = one.count("predicted_gradient_bytes");
    rank.optimizer_bytes = one.count("predicted_optimizer_bytes");
    if (rank.weight_bytes && rank.gradient_bytes && rank.optimizer_bytes)
      rank.predicted_bytes = *rank.weight_bytes + *rank.gradient_bytes + *rank.optimizer_bytes;
    rank.peak_tensor_bytes = one.count("peak_tensor_bytes");
    rank.memory_limit_bytes = one.count("memory_limit_bytes");
    if (const Json* part = one.object("part")) rank.part = read_part(*part, line.where());
    rank.data_seconds = one.number("data_seconds");
    rank.compute_seconds = one.number("compute_seconds");
    rank.exchange_seconds = one.number("exchange_seconds");
    rank.optimizer_seconds = one.number("optimizer_seconds");
    run.ranks.push_back(std::move(rank));
  }
}

void read_confusion(const JsonLine& line, RunRecord& run) {
  const Json* classes = line.array("classes");
  const Json* counts = line.array("counts");
  if (!classes || !counts) fail(ErrorCode::kBadInput, line.where(), ": a confusion matrix needs the lists 'classes' and 'counts'");
  ConfusionRecord confusion;
  confusion.step = line.required_count("step");
  confusion.classes = line.texts("classes");
  const size_t size = confusion.classes.size();
  if (counts->size() != size) fail(ErrorCode::kBadInput, line.where(), ": 'counts' has ", counts->size(), " rows for ", size, " classes");
  for (const Json& row : *counts) {
    confusion.counts.push_back(JsonLine::counts(row, line.where(), "a row of 'counts'"));
    if (confusion.counts.back().size() != size)
      fail(ErrorCode::kBadInput, line.where(), ": a row of 'counts' has ", confusion.counts.back().size(), " columns for ", size,
           " classes");
  }
  run.confusion = std::move(confusion);
}

void read_done(const JsonLine& line, RunRecord& run) {
  DoneRecord done;
  done.step = line.required_count("step");
  done.loss = line.number("loss");
  done.val_loss = line.number("val_loss");
  done.val_error = line.number("val_error");
  done.seconds = line.number("seconds");
  done.predicted_step_seconds = line.number("predicted_step_seconds");
  done.measured_step_seconds = line.number("measured_step_seconds");
  if (const Json* bytes = line.array("peak_memory_bytes"))
    done.peak_memory_bytes = JsonLine::counts(*bytes, line.where(), "'peak_memory_bytes'");
  done.skipped_steps = line.count("skipped_steps");
  run.done = std::move(done);
  run.state = RunState::kDone;
}

void read_event(const Json& object, const std::string& where, RunRecord& run) {
  const JsonLine line(object, where);
  const std::string event = line.required_text("event");
  if (event == "start") read_start(line, object, run);
  else if (event == "step") read_step(line, run);
  else if (event == "eval") read_eval(line, run);
  else if (event == "noise_scale") read_noise(line, run);
  else if (event == "checkpoint") run.checkpoints.push_back({line.required_count("step"), line.text("path")});
  else if (event == "resume") read_resume(line, run);
  else if (event == "ranks") read_ranks(line, run);
  else if (event == "pipeline") read_pipeline(line, run);
  else if (event == "confusion") read_confusion(line, run);
  else if (event == "sample") run.sample = SampleRecord{line.required_count("step"), line.text("prompt"), line.text("text")};
  else if (event == "exchange_advice") run.exchange_advice = line.text("sentence");
  else if (event == "done") read_done(line, run);
  else if (event == "interrupted") run.state = RunState::kInterrupted;
  else if (event == "failed") run.state = RunState::kFailed, run.failure = {line.count("exit_code").value_or(0), line.text("cause")};
  else if (event == "changed")
    run.changes.push_back({line.required_count("step"), line.text("setting"), line.text("from"), line.text("to")});
  else if (event == "missing_lines") run.missing_lines += line.required_count("lines");
}

/// A parse error is held back until another line follows: only then was it not the last one.
void read_metrics(const std::string& path, RunRecord& run) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error))
    fail(ErrorCode::kBadInput, path, ": no such file; a run folder has the metrics.jsonl that `cohort train` writes");
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(ErrorCode::kBadInput, path, ": cannot be opened for reading");
  std::optional<Error> broken;
  std::string text;
  for (int64_t number = 1; std::getline(file, text); ++number) {
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
    read_event(object, where, run);
  }
  if (file.bad()) fail(ErrorCode::kBadInput, path, ": cannot be read to its end");
}

}  // namespace

RunRecord read_run(const std::string& run) {
  RunRecord record;
  record.folder = run;
  read_metrics(run + "/metrics.jsonl", record);
  if (std::error_code error; std::filesystem::exists(run + "/config.toml", error)) record.config = read_config_values(run + "/config.toml");
  return record;
}

std::string config_value(const RunRecord& run, const std::string& key) {
  const auto at = std::find_if(run.config.begin(), run.config.end(), [&](const ConfigValue& value) { return value.key == key; });
  return at == run.config.end() ? "" : at->value;
}

}  // namespace cohort::page
