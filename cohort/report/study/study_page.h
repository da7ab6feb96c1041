#pragma once
// The report of batch-size studies: one self-contained HTML file, for small screens too, light and dark, and one CSV per plot. It is
// computed from raw data (StudyData), and from the step times and noise scales of the options.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/report/study/study_figures.h"
#include "cohort/study/analysis/fits.h"
#include "cohort/study/analysis/self_checks.h"
#include "cohort/study/analysis/worth.h"
#include "cohort/study/spec/data.h"

namespace cohort::report {

struct ReportedStudy {
  study::StudyData data;
  std::string name;  ///< The folder, to distinguish studies of the same workload.
};

/// A gradient noise scale that was measured on this workload.
struct NoiseScaleNote {
  double noise_scale = 0;      ///< In samples.
  int64_t step = 0;            ///< 0: unknown.
  std::optional<double> loss;  ///< Loss at that step.
};

struct StudyReportOptions {
  std::string path;                     ///< The page; CSVs are written to plots/ beside it.
  std::vector<ReportedStudy> studies;   ///< At least one. The page begins with the first; the others are overlaid on it and follow it.
  std::optional<study::GoalSpec> goal;  ///< Default: each study's first; where it has none, one that every batch size reaches.
  std::vector<study::GoalSpec> goals;   ///< Further goals of figure 2; empty: chosen automatically.
  double reference_batch = 0;           ///< The batch size that linear scaling and relative panels start from; 0: the smallest.
  StudyBudgets budgets;                 ///< Budgets of figures 9 to 11.
  int num_resamples = 1000;             ///< Rounds of the bootstrap.
  std::vector<study::StepTime> times;   ///< Measured step times; may be empty.
  std::vector<NoiseScaleNote> noise_scales;
  std::vector<std::string> warnings;  ///< Sentences on limits of the results.
  int64_t raw_bytes = 0;              ///< Size of the first study's files; 0: unknown.
  std::vector<std::string> commands;  ///< Commands that reproduce the report.
};

/// The content of the page: sentences for printing, and the analysis itself.
struct StudyReport {
  std::string name;  ///< Name of the study.
  std::string path;
  std::vector<std::string> plots;  ///< Paths of the CSVs.
  bool has_goal = false;           ///< False without measurements; then there is no analysis.
  study::Analysis analysis;
  std::vector<study::Flag> flags;
  study::Worth worth;
  std::vector<std::string> sentences;
  std::vector<std::string> warnings;  ///< Those of the options, and of studies that do not measure the goal.
  std::vector<StudyReport> others;    ///< The further studies, with what is computed from raw data only.
};

/// Writes page and CSVs, all of them or none, and removes CSVs of an earlier report that this one does not have. Error(kBadInput) without a
/// study, for a goal that the first study does not measure, and for an unwritable path; kFailed for a full disk.
StudyReport write_study_report(const StudyReportOptions& options);

}  // namespace cohort::report
