#pragma once
// The sections of a report, each from a RunRecord to markup; "" where the run has nothing to show for it.

#include <string>

#include "cohort/report/curve.h"
#include "cohort/report/run_reader.h"
#include "cohort/report/summary.h"

namespace cohort::page {

/// The training loss, smoothed over about a fiftieth of the run.
Curve smoothed_loss(const RunRecord& run);

/// The whole document.
std::string report_page(const RunRecord& run);

std::string curves_section(const RunRecord& run, const Summary& summary);
std::string step_time_section(const RunRecord& run, const Summary& summary);
std::string workers_section(const RunRecord& run, const Summary& summary);
std::string confusion_section(const RunRecord& run);
std::string sample_section(const RunRecord& run);
std::string configuration_section(const RunRecord& run, const Summary& summary);

}  // namespace cohort::page
