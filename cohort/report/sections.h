#pragma once
// The summary of a run (key figures and a headline), and the sections of its report as markup, "" where the run has no data for them. Pure
// functions of a RunRecord.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/report/draw/curve.h"
#include "cohort/report/draw/page.h"
#include "cohort/report/run_reader.h"

namespace cohort::report {

// --- Summary (summary.cpp).

struct Summary {
  std::string model, data;
  bool is_text = false;
  std::string unit = "byte";  ///< Unit of text: "piece" with a vocabulary.
  bool is_regression = false;
  bool has_own_loss = false;  ///< Otherwise val_loss is the cross-entropy; for text in nats per unit.
  bool has_steps = false;
  int64_t num_workers = 1;
  int64_t last_step = 0;
  std::optional<int64_t> planned_steps;
  int64_t steps_of_last_process = 0;  ///< Since the last resume.
  double train_loss = kUnknown;       ///< Smoothed, at the last step.
  double val_loss = kUnknown, val_error = kUnknown;
  double best_val_loss = kUnknown, best_val_error = kUnknown;
  double val_precision = kUnknown, best_val_precision = kUnknown;  ///< Only for data with labels.
  int64_t last_eval_step = 0;                                      ///< The step of val_loss, val_error and val_precision.
  int64_t best_val_loss_step = 0, best_val_error_step = 0, best_val_precision_step = 0;
  double seconds = kUnknown;
  bool seconds_are_estimated = false;  ///< Sum of the step times, without evaluations and start-up.
  double step_seconds = kUnknown;      ///< Measured by the run where it ended, else the median of the steps.
  double predicted_step_seconds = kUnknown;
  double samples_per_second = kUnknown;      ///< Median of the steps.
  std::optional<int64_t> peak_memory_bytes;  ///< Maximum over ranks.
};

Summary summarize(const RunRecord& run);

/// "cnn on fashion-mnist:", "90.1 % validation accuracy", "after 1,720 steps, 2 workers, 3 min 12 s".
struct Headline {
  std::string what, result, rest;
  std::string text() const { return what + " " + result + (rest.empty() ? "" : " " + rest); }
};
Headline headline(const RunRecord& run, const Summary& summary);

/// A notice on a run that did not finish, and how to resume it, and on metrics that could not be written; "" for others.
std::string state_notice(const RunRecord& run, const Summary& summary);

/// "finished", "interrupted", "failed" or "no end recorded".
const char* state_text(RunState state);

std::vector<Tile> key_figures(const RunRecord& run, const Summary& summary);

/// Nats to bits.
double bits(double nats);

// --- Sections.

/// The training loss, smoothed over about 2 % of the run.
Curve smoothed_loss(const RunRecord& run);

/// The whole document.
std::string report_page(const RunRecord& run);
/// The document of a running training, with the script that fetches newer versions.
std::string live_page(const RunRecord& run, int64_t version, const std::string& script);

std::string curves_section(const RunRecord& run, const Summary& summary);
/// The gradient noise scale over the steps, where it was measured.
std::string noise_section(const RunRecord& run);
/// Loss over virtual time, staleness of pushes, and the work of each worker.
std::string async_section(const RunRecord& run);
std::string step_time_section(const RunRecord& run, const Summary& summary);
std::string workers_section(const RunRecord& run, const Summary& summary);
/// A table cell with names, which may take several lines.
std::string layer_names(const std::vector<std::string>& names);
/// The parts of the model and the memory of each rank, for sharded models and runs with a memory limit.
std::string parts_section(const RunRecord& run, const Summary& summary);
/// Forecast and measurement as bars: of a step, of each rank's time in it, of its memory.
std::string forecast_section(const RunRecord& run, const Summary& summary);
/// The stages of a pipeline, its schedule as a chart, and forecast and measurement.
std::string pipeline_section(const RunRecord& run, const Summary& summary);
std::string confusion_section(const RunRecord& run);
/// Images with confident wrong predictions.
std::string mistakes_section(const RunRecord& run);
std::string sample_section(const RunRecord& run);
std::string configuration_section(const RunRecord& run, const Summary& summary);

}  // namespace cohort::report
