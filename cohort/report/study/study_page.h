#pragma once
// The report of a batch-size study: one HTML file without network, readable on a phone, light and dark, and one CSV for each plot. All of
// it is made from raw data (StudyData), but for what the options say of times and noise scales.

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
  std::string name;  ///< The folder's: told apart by it where workloads have the same names.
};

/// A gradient noise scale that someone measured on this workload.
struct NoiseScaleNote {
  double noise_scale = 0;      ///< Samples.
  int64_t step = 0;            ///< 0: unknown.
  std::optional<double> loss;  ///< There.
};

struct StudyReportOptions {
  std::string path;                     ///< The page; CSVs go into plots/ beside it.
  std::vector<ReportedStudy> studies;   ///< The page begins with the first; the others are laid over it and follow it. At least one.
  std::optional<study::GoalSpec> goal;  ///< Default: each study's first; where it has none, one that every batch size reaches.
  std::vector<study::GoalSpec> goals;   ///< Of figure 2, beside the goal; empty: chosen.
  double reference_batch = 0;           ///< Linear scaling is taken from here, and relative panels are relative to it; 0: the smallest.
  StudyBudgets budgets;                 ///< Of figures 9 to 11.
  int num_resamples = 1000;             ///< Of the bootstrap.
  std::vector<study::StepTime> times;   ///< Measured; may be empty.
  std::vector<NoiseScaleNote> noise_scales;
  std::vector<std::string> warnings;  ///< Sentences of what makes the results less than they seem.
  int64_t raw_bytes = 0;              ///< Of the files that the first study was read from; 0: unknown.
  std::vector<std::string> commands;  ///< How to repeat it.
};

/// What the page says, for those who print it. The text is for people; numbers are in the parts.
struct StudyReport {
  std::string name;  ///< Of the study.
  std::string path;
  std::vector<std::string> plots;  ///< Paths of the CSVs.
  bool has_goal = false;           ///< Without measurements there is none, and no analysis.
  study::Analysis analysis;
  std::vector<study::Flag> flags;
  study::Worth worth;
  std::vector<std::string> sentences;
  std::vector<std::string> warnings;  ///< Those of the options, and of studies that can not answer the goal.
  std::vector<StudyReport> others;    ///< Of the second study, the third, ...: only what is made from raw data.
};

/// Writes page and CSVs, all of them or none, each by rename, and removes the CSVs of figures that an earlier report had there and this one
/// has not. Error(kBadInput) without a study, for a goal that the first does not measure, and for a place that can not be written; kFailed
/// for a full disk.
StudyReport write_study_report(const StudyReportOptions& options);

}  // namespace cohort::report
