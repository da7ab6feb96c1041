#pragma once
// The public layout of the batch-size study's raw data: DATASET/MODEL/OPTIMIZER/BATCH/{study.json, TRIAL/{metadata.json,
// measurements.csv}}. docs/formats/study_archive.md.

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cohort/study/spec/data.h"

namespace cohort::study {

// Selection of the measurements that are kept in memory.

/// All measurements, or only those needed for these metrics; with an empty set none, only the summary (WholeCourse).
struct Keep {
  bool all = true;
  MetricSet metrics;
};

/// Receives the measurements of one trial as they are read, and keeps the first, the last, and the records: those at which a metric was
/// better than at any before. Memory: 96 bytes per kept measurement.
///
/// Analyses of these are exact: the first step at a goal and the best value within a budget are records, whatever the goal and the budget;
/// values of other metrics are in the same measurement, and the number of evaluations and the step before are stored with it. The first
/// measurement is that of the untrained model, and the last tells how long the trial was measured.
class RecordKeeper {
 public:
  explicit RecordKeeper(MetricSet metrics) : metrics_(metrics) { whole_.kept = metrics; }
  /// Steps must increase.
  void add(const Measurement& measurement);
  /// Moves the kept measurements and their summary into the trial.
  void put_into(Trial& trial);

 private:
  void keep(const Measurement& measurement, const WholeCourse::Place& place);

  MetricSet metrics_;
  std::array<double, kNumMetrics> best_{};
  MetricSet has_best_;
  std::vector<Measurement> kept_;
  WholeCourse whole_;
  Measurement last_;
  WholeCourse::Place last_place_;
  bool last_is_kept_ = true;
};

// Files.

/// Writes the study below `folder`, completely or not at all. Error(kBadInput) where one of its batch sizes exists already, or a name is
/// not valid for a folder. Returns the folder of the workload.
std::string export_archive(const StudyData& study, const std::string& folder);

/// Whether there is a study.json in `folder` or up to five folders below it.
bool is_archive(const std::string& folder);

struct ArchivedWorkload {
  std::string folder;                      ///< The optimizer's folder.
  std::vector<std::string> batch_folders;  ///< Sorted by batch size where names are numbers.
};
/// All workloads in or below `folder`, which may be the root, a group of data sets, a data set, a model, an optimizer or one batch size.
/// Error(kBadInput) where there is none.
std::vector<ArchivedWorkload> find_workloads(const std::string& folder);
/// Error(kBadInput) with file and line for malformed files. Memory: 80 bytes per measurement that `keep` selects.
StudyData import_workload(const ArchivedWorkload& workload, const Keep& keep = {});
/// One batch size: a study with one batch.
StudyData import_batch(const std::string& batch_folder, const Keep& keep = {});

/// What reports and fits need: the metrics of `goals` and of the goals that the workloads have or may have; with `may_choose` (a goal may
/// have to be chosen) also all validation metrics.
Keep keep_for_goals(const std::vector<ArchivedWorkload>& workloads, const std::vector<GoalSpec>& goals, bool may_choose = true);

/// All workloads for a report at `goals`, at their own, and at those of workloads of the same data set or subsets of it, which are
/// overlaid. `may_choose`: other studies of the report have no goal. Where a workload has none, those of its data set are read again with
/// all validation metrics.
std::vector<StudyData> import_for_goals(const std::vector<ArchivedWorkload>& workloads, const std::vector<GoalSpec>& goals,
                                        bool may_choose);

// Facts about the workloads of Shallue et al. (2019) that their archive lacks: which trials count, the number of training samples, and the
// goals. Source: text, figures 1 to 6, and the authors' notebook.

/// 50 or 100, depending on the workload.
int64_t published_num_trials(const StudyData& study);

/// 0 where unknown.
int64_t published_num_train_samples(const std::string& dataset);

/// The goal of figure 1, then those of comparisons (models, subsets); empty for other workloads.
std::vector<GoalSpec> published_goals(const std::string& dataset, const std::string& model);

}  // namespace cohort::study
