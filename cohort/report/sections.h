#pragma once
// The sections of a report, each from a RunRecord to markup; "" where the run has nothing to show for it.

#include <string>
#include <vector>

#include "cohort/report/draw/curve.h"
#include "cohort/report/run_reader.h"
#include "cohort/report/summary.h"

namespace cohort::report {

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
