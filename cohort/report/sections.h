#pragma once
// What a run came to, as a few figures and one sentence, and the sections of its report, each from a RunRecord to markup; "" where the run
// has nothing to show for it. Pure functions of a RunRecord.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/report/draw/curve.h"
#include "cohort/report/draw/page.h"
#include "cohort/report/run_reader.h"

namespace cohort::report {

// --- What a run came to (summary.cpp).

struct Summary {
  std::string model, data;
  bool is_text = false;
  std::string unit = "byte";  ///< Of text: "piece" where it is cut by a vocabulary.
  bool is_regression = false;
  bool has_own_loss = false;  ///< Or another one by name; else val_loss is the cross-entropy: for text nats a unit.
  bool has_steps = false;
  int64_t num_workers = 1;
  int64_t last_step = 0;
  std::optional<int64_t> planned_steps;
  int64_t steps_of_last_process = 0;  ///< Since the last resume.
  double train_loss = kUnknown;       ///< Smoothed, at the last step.
  double val_loss = kUnknown, val_error = kUnknown;
  double best_val_loss = kUnknown, best_val_error = kUnknown;
  double val_precision = kUnknown, best_val_precision = kUnknown;  ///< Of data with labels alone.
  int64_t last_eval_step = 0;                                      ///< That val_loss, val_error and val_precision are of.
  int64_t best_val_loss_step = 0, best_val_error_step = 0, best_val_precision_step = 0;
  double seconds = kUnknown;
  bool seconds_are_estimated = false;  ///< From the step times: evaluations and start-up are not in it.
  double step_seconds = kUnknown;      ///< Measured by the run where it ended, else the median of the steps.
  double predicted_step_seconds = kUnknown;
  double samples_per_second = kUnknown;      ///< Median of the steps.
  std::optional<int64_t> peak_memory_bytes;  ///< Of the rank that needed most.
};

Summary summarize(const RunRecord& run);

/// "cnn on fashion-mnist:", "90.1 % validation accuracy", "after 1,720 steps, 2 workers, 3 min 12 s".
struct Headline {
  std::string what, result, rest;
  std::string text() const { return what + " " + result + (rest.empty() ? "" : " " + rest); }
};
Headline headline(const RunRecord& run, const Summary& summary);

/// What is known of the end of a run that did not end by itself, and how to go on; what its metrics lack. Empty for nothing of that.
std::string state_notice(const RunRecord& run, const Summary& summary);

std::vector<Tile> key_figures(const RunRecord& run, const Summary& summary);

/// Nats to bits.
double bits(double nats);

// --- Sections.

/// The training loss, smoothed over about a fiftieth of the run.
Curve smoothed_loss(const RunRecord& run);

/// The whole document.
std::string report_page(const RunRecord& run);
/// The same of a run that is going on, with the script that brings newer versions of it.
std::string live_page(const RunRecord& run, int64_t version, const std::string& script);

std::string curves_section(const RunRecord& run, const Summary& summary);
/// The gradient noise scale over the steps, where it was measured.
std::string noise_section(const RunRecord& run);
/// Loss against virtual time, how late pushes were, and who did how much.
std::string async_section(const RunRecord& run);
std::string step_time_section(const RunRecord& run, const Summary& summary);
std::string workers_section(const RunRecord& run, const Summary& summary);
/// A cell of a table: names that may take several lines.
std::string layer_names(const std::vector<std::string>& names);
/// What each rank held: of a model that is divided over ranks, or of a run with a memory limit.
std::string parts_section(const RunRecord& run, const Summary& summary);
/// Forecast and measurement as two bars each: of a step, of each rank's part in it, of its memory.
std::string forecast_section(const RunRecord& run, const Summary& summary);
/// The stages of a pipeline and its schedule as a chart, the forecast beside the measurement.
std::string pipeline_section(const RunRecord& run, const Summary& summary);
std::string confusion_section(const RunRecord& run);
/// Pictures that were surely taken for another class.
std::string mistakes_section(const RunRecord& run);
std::string sample_section(const RunRecord& run);
std::string configuration_section(const RunRecord& run, const Summary& summary);

}  // namespace cohort::report
