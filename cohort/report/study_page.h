#pragma once
// The report of a batch-size study: one HTML file without network, readable on a phone, light and dark, and one CSV for each plot. All of
// it is made from raw data (StudyData), but for what the options say of times and noise scales.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/study/data.h"
#include "cohort/study/fits.h"
#include "cohort/study/self_checks.h"
#include "cohort/study/worth.h"

namespace cohort {

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
  std::vector<ReportedStudy> studies;   ///< The first is the one that the page tells of; the others are laid over it. At least one.
  std::optional<study::GoalSpec> goal;  ///< Default: the study's first; where it has none, one that every batch size reaches.
  double reference_batch = 0;           ///< Linear scaling is taken from here; 0: the smallest.
  int num_resamples = 1000;             ///< Of the bootstrap.
  std::vector<study::StepTime> times;   ///< Measured; may be empty.
  std::vector<NoiseScaleNote> noise_scales;
  std::vector<std::string> warnings;  ///< Sentences of what makes the results of the first study less than they seem.
  int64_t raw_bytes = 0;              ///< Of the files that the first study was read from; 0: unknown.
  std::vector<std::string> commands;  ///< How to repeat it.
};

/// What the page says, for those who print it. The text is for people; numbers are in the parts.
struct StudyReport {
  std::string path;
  std::vector<std::string> plots;  ///< Paths of the CSVs.
  bool has_goal = false;           ///< Without measurements there is none, and no analysis.
  study::Analysis analysis;
  std::vector<study::Flag> flags;
  study::Worth worth;
  std::vector<std::string> sentences;
};

/// Writes page and CSVs, each by rename. Error(kBadInput) without a study; kFailed where they can not be written.
StudyReport write_study_report(const StudyReportOptions& options);

}  // namespace cohort
