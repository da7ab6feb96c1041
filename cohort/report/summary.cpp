// The summary of a run: headline, key figures and notices.

#include "cohort/report/sections.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "cohort/base/fail.h"
#include "cohort/base/statistics.h"
#include "cohort/base/text/text.h"
#include "cohort/report/draw/curve.h"
#include "cohort/report/draw/format.h"

namespace cohort::report {
namespace {

void summarize_start(const RunRecord& run, Summary& summary) {
  const StartRecord start = run.start.value_or(StartRecord{});
  summary.model = start.model.empty() ? config_value(run, "model") : start.model;
  if (summary.model.empty()) summary.model = "a model";
  summary.data = start.data.empty() ? config_value(run, "data") : start.data;
  summary.is_text = run.sample.has_value() || summary.data.starts_with("text:");
  if (summary.data.starts_with("text:") && summary.data.find(",vocabulary=") != std::string::npos) summary.unit = "piece";
  summary.has_own_loss = !start.loss.empty();
  summary.is_regression = start.loss == "mse";
  summary.num_workers = start.world_size;
  summary.planned_steps = start.steps;
  if (!summary.planned_steps) {
    if (const auto steps = parse_integer(config_value(run, "steps")); steps && *steps > 0) summary.planned_steps = steps;
  }
}

void summarize_steps(const RunRecord& run, Summary& summary) {
  std::vector<double> speeds, times;
  double seconds = 0;
  int64_t previous = 0;
  for (const StepRecord& step : run.steps) {
    speeds.push_back(step.samples_per_second);
    times.push_back(step.step_seconds);
    // Where only every n-th step is recorded, its time represents the n steps up to it.
    if (std::isfinite(step.step_seconds)) seconds += step.step_seconds * static_cast<double>(step.step - previous);
    previous = step.step;
  }
  summary.samples_per_second = quantile(speeds, 0.5);
  summary.step_seconds = quantile(times, 0.5);
  if (seconds > 0) summary.seconds = seconds;
  summary.seconds_are_estimated = true;
  if (run.steps.empty()) return;
  summary.has_steps = true;
  summary.last_step = run.steps.back().step;
  const Curve smoothed = smoothed_loss(run);
  summary.train_loss = smoothed.back().y;
}

void summarize_evals(const RunRecord& run, Summary& summary) {
  for (const EvalRecord& eval : run.evals) {
    summary.val_loss = eval.val_loss;
    summary.val_error = eval.val_error;
    summary.val_precision = eval.val_precision;
    summary.last_eval_step = eval.step;
    const auto keep_best = [&](double value, double sign, double& best, int64_t& best_step) {
      if (std::isfinite(value) && !(sign * best <= sign * value)) best = value, best_step = eval.step;
    };
    keep_best(eval.val_loss, 1, summary.best_val_loss, summary.best_val_loss_step);
    keep_best(eval.val_error, 1, summary.best_val_error, summary.best_val_error_step);
    keep_best(eval.val_precision, -1, summary.best_val_precision, summary.best_val_precision_step);
  }
}

void summarize_done(const DoneRecord& done, Summary& summary) {
  summary.has_steps = summary.has_steps || done.step > 0;
  summary.last_step = done.step;
  if (!std::isfinite(summary.train_loss)) summary.train_loss = done.loss;
  if (std::isfinite(done.val_loss) || std::isfinite(done.val_error)) {
    summary.val_loss = done.val_loss;
    summary.val_error = done.val_error;
    summary.val_precision = done.val_precision;
    summary.last_eval_step = done.step;
  }
  if (std::isfinite(done.seconds)) {
    summary.seconds = done.seconds;
    summary.seconds_are_estimated = false;
  }
  if (std::isfinite(done.measured_step_seconds)) summary.step_seconds = done.measured_step_seconds;
  summary.predicted_step_seconds = done.predicted_step_seconds;
}

/// A note where the last value is not the best one, or is not of the last step.
std::string value_note(const Summary& summary, double best, double last, int64_t best_step, const std::string& best_text) {
  if (best < last) return "best " + best_text + " at step " + with_commas(best_step);
  return summary.last_eval_step < summary.last_step ? "at step " + with_commas(summary.last_eval_step) : "";
}

void add_test_tile(const RunRecord& run, const Summary& summary, std::vector<Tile>& list) {
  if (!run.done || run.done->test_samples.value_or(0) == 0) return;
  const std::string note = plural(*run.done->test_samples, "sample");
  if (!std::isfinite(run.done->test_error)) {
    if (std::isfinite(run.done->test_loss)) list.push_back({"Test loss", significant(run.done->test_loss, 3), note});
  } else if (std::isfinite(run.done->test_precision)) {
    list.push_back({"Test precision", significant(run.done->test_precision, 3), note});
  } else if (summary.is_regression) {
    list.push_back({"Test error", significant(run.done->test_error, 3), note});
  } else {
    list.push_back({"Test accuracy", percent_text(1 - run.done->test_error), note});
  }
}

void add_result_tiles(const RunRecord& run, const Summary& summary, std::vector<Tile>& list) {
  if (summary.is_regression && std::isfinite(summary.val_error)) {
    list.push_back({"Validation error", significant(summary.val_error, 3),
                    summary.best_val_error < summary.val_error
                        ? value_note(summary, summary.best_val_error, summary.val_error, summary.best_val_error_step,
                                     significant(summary.best_val_error, 3))
                        : "root mean square, in deviations"});
  } else if (std::isfinite(summary.val_precision)) {
    list.push_back({"Average precision", significant(summary.val_precision, 3),
                    summary.best_val_precision > summary.val_precision ? concat("best ", significant(summary.best_val_precision, 3),
                                                                                " at step ", with_commas(summary.best_val_precision_step))
                                                                       : "mean over labels, validation"});
    list.push_back({"Labels right", percent_text(1 - summary.val_error), "of all, each yes or no, validation"});
  } else if (!summary.is_text && std::isfinite(summary.val_error)) {
    list.push_back({"Validation accuracy", percent_text(1 - summary.val_error),
                    value_note(summary, summary.best_val_error, summary.val_error, summary.best_val_error_step,
                               percent_text(1 - summary.best_val_error))});
  }
  add_test_tile(run, summary, list);
  if (summary.is_text && !summary.has_own_loss && std::isfinite(summary.val_loss)) {
    list.push_back({"Bits per " + summary.unit, significant(bits(summary.val_loss), 3),
                    value_note(summary, summary.best_val_loss, summary.val_loss, summary.best_val_loss_step,
                               significant(bits(summary.best_val_loss), 3))});
    list.push_back({"Perplexity", significant(std::exp(summary.val_loss), 3), "of a " + summary.unit + ", validation"});
  }
  if (summary.is_text && std::isfinite(summary.val_error))
    list.push_back({"Next " + summary.unit + " right", percent_text(1 - summary.val_error), "validation"});
  if (std::isfinite(summary.val_loss)) {
    list.push_back({"Validation loss", significant(summary.val_loss, 3),
                    summary.is_text && !summary.has_own_loss
                        ? "nats a " + summary.unit
                        : value_note(summary, summary.best_val_loss, summary.val_loss, summary.best_val_loss_step,
                                     significant(summary.best_val_loss, 3))});
  }
  if (summary.has_steps)
    list.push_back({"Training loss", significant(summary.train_loss, 3), run.steps.size() > 1 ? "smoothed, last step" : ""});
}

std::string forecast_note(const Summary& summary) {
  if (!std::isfinite(summary.predicted_step_seconds) || !(summary.step_seconds > 0)) return "";
  const double error = summary.predicted_step_seconds / summary.step_seconds - 1;
  return "forecast " + milliseconds_text(summary.predicted_step_seconds) + ", " + percent_text(std::abs(error), 0) +
         (error < 0 ? " below" : " above");
}

}  // namespace

double bits(double nats) { return nats / std::numbers::ln2; }

Summary summarize(const RunRecord& run) {
  Summary summary;
  summarize_start(run, summary);
  summarize_steps(run, summary);
  summarize_evals(run, summary);
  if (run.done) summarize_done(*run.done, summary);
  const int64_t resumed_at = run.resumes.empty() ? 0 : run.resumes.back().step;
  summary.steps_of_last_process = std::max<int64_t>(0, summary.last_step - resumed_at);
  std::vector<int64_t> peaks;
  if (run.done) peaks = run.done->peak_memory_bytes;
  for (const RankRecord& rank : run.ranks) {
    if (rank.peak_memory_bytes) peaks.push_back(*rank.peak_memory_bytes);
  }
  if (!peaks.empty()) summary.peak_memory_bytes = *std::max_element(peaks.begin(), peaks.end());
  return summary;
}

Headline headline(const RunRecord& run, const Summary& summary) {
  Headline line;
  line.what = summary.model + (summary.data.empty() ? "" : " on " + summary.data) + ":";
  if (!summary.has_steps) {
    line.result = "no step was recorded";
    return line;
  }
  if (summary.is_regression && std::isfinite(summary.val_error))
    line.result = "validation error " + significant(summary.val_error, 3) + " of a deviation";
  else if (std::isfinite(summary.val_precision)) line.result = significant(summary.val_precision, 3) + " average precision";
  else if (!summary.is_text && std::isfinite(summary.val_error)) line.result = percent_text(1 - summary.val_error) + " validation accuracy";
  else if (summary.is_text && !summary.has_own_loss && std::isfinite(summary.val_loss))
    line.result = significant(bits(summary.val_loss), 3) + " bits per " + summary.unit;
  else if (std::isfinite(summary.val_loss)) line.result = "validation loss " + significant(summary.val_loss, 3);
  else if (std::isfinite(summary.train_loss)) line.result = "training loss " + significant(summary.train_loss, 3);
  else line.result = "the loss is not finite";
  const bool is_short = run.state != RunState::kDone && summary.planned_steps && *summary.planned_steps > summary.last_step;
  line.rest =
      "after " +
      (is_short ? with_commas(summary.last_step) + " of " + plural(*summary.planned_steps, "step") : plural(summary.last_step, "step")) +
      ", " + plural(summary.num_workers, "worker");
  if (std::isfinite(summary.seconds))
    line.rest += std::string(", ") + (summary.seconds_are_estimated ? "about " : "") + seconds_text(summary.seconds);
  return line;
}

static std::string missing_notice(const RunRecord& run) {
  if (run.missing_lines == 0) return "";
  return plural(run.missing_lines, "line") + " of metrics.jsonl could not be written, so the curves have gaps.";
}

std::string state_notice(const RunRecord& run, const Summary& summary) {
  if (run.state == RunState::kDone) return missing_notice(run);
  const std::string at = summary.has_steps ? " at step " + with_commas(summary.last_step) : " before its first step";
  std::string text;
  if (run.state == RunState::kInterrupted) text = "The run was interrupted" + at + ".";
  else if (run.state == RunState::kFailed)
    text = "The run failed" + (summary.has_steps ? " after step " + with_commas(summary.last_step) : at) + ": " + run.failure.cause +
           " (exit code " + std::to_string(run.failure.exit_code.value_or(0)) + ").";
  else
    text = "No end is recorded: the run is still going, or it was killed" +
           (summary.has_steps ? " after step " + with_commas(summary.last_step) : at) + ".";
  if (const std::string missing = missing_notice(run); !missing.empty()) text += " " + missing;
  if (run.checkpoints.empty()) return text;
  return text + " Its newest checkpoint is of step " + with_commas(run.checkpoints.back().step) +
         (run.start && !run.start->resume_with.empty() ? "; go on with: " + run.start->resume_with
                                                       : "; cohort train --resume with the same --run goes on from there.");
}

const char* state_text(RunState state) {
  static constexpr const char* kTexts[] = {"no end recorded", "finished", "interrupted", "failed"};
  return kTexts[static_cast<int>(state)];
}

std::vector<Tile> key_figures(const RunRecord& run, const Summary& summary) {
  std::vector<Tile> list;
  add_result_tiles(run, summary, list);
  if (std::isfinite(summary.seconds)) {
    list.push_back({"Time", seconds_text(summary.seconds),
                    summary.seconds_are_estimated ? "sum of the step times"
                    : run.resumes.empty()         ? plural(summary.last_step, "step")
                                                  : "since the resume at step " + with_commas(run.resumes.back().step)});
  }
  if (std::isfinite(summary.samples_per_second)) list.push_back({"Speed", significant(summary.samples_per_second, 3), "samples/s, median"});
  if (std::isfinite(summary.step_seconds)) list.push_back({"Step time", milliseconds_text(summary.step_seconds), forecast_note(summary)});
  if (run.done && run.done->skipped_steps.value_or(0) > 0)
    list.push_back({"Skipped steps", with_commas(*run.done->skipped_steps), "their gradients overflowed fp16"});
  list.push_back({"Workers", with_commas(summary.num_workers), !run.layout.empty() ? "layout " + run.layout : ""});
  if (summary.peak_memory_bytes)
    list.push_back({"Peak memory", bytes_text(summary.peak_memory_bytes), summary.num_workers > 1 ? "of one worker" : ""});
  if (run.start && run.start->parameters) list.push_back({"Parameters", count_text(run.start->parameters), ""});
  if (run.start && run.start->train_samples) list.push_back({"Training samples", count_text(run.start->train_samples), ""});
  return list;
}

}  // namespace cohort::report
