#pragma once
// A report of several studies: the figures that each study has of its own, and what those of the second, third, ... are called.

#include <optional>
#include <string>
#include <vector>

#include "cohort/report/study/study_figures.h"
#include "cohort/report/study/study_page.h"

namespace cohort::report {

/// Studies beyond that have no figures of their own (the page would weigh hundreds of megabytes for a whole archive); they stay in those
/// that lay studies over each other, and the page says so.
constexpr size_t kMaxOwnFigures = 12;

/// What people call it: the folder's own name, or an archive's DATASET/MODEL/OPTIMIZER.
std::string label_of(const ReportedStudy& study);
/// "-2-quick2" for the second one: behind the ids of its sections and the names of its CSVs. Letters, digits, '.', '_' and '-' alone.
std::string suffix_of(const ReportedStudy& study, size_t number);

/// Goal (`asked` where the study measures it, else its own, else an automatic one), analysis, flags and sentences; no path, plots and
/// worth.
StudyReport analyse_reported(const ReportedStudy& study, const std::optional<study::GoalSpec>& asked, const StudyReportOptions& options);

/// Figures 1, 2, 7, 8, 9 and 11; those with nothing to show are left out.
std::vector<Figure> own_figures(const study::StudyData& study, const StudyReport& report, const StudyReportOptions& options);
/// The same for the study that is the report's `number`-th (from 2), with headings, section ids and plot ids that name it.
std::vector<Figure> further_figures(const ReportedStudy& study, const StudyReport& report, size_t number,
                                    const StudyReportOptions& options);

/// What a reader must know: studies that can not answer the goal asked for, and those without figures of their own.
std::vector<std::string> warnings_of_several(const StudyReportOptions& options, const StudyReport& report);

}  // namespace cohort::report
