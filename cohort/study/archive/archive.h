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

// Which measurements of an archive's trials are kept in memory.

/// All of them, or only those that can answer a question about these metrics; of none: no measurement at all, but what they were
/// (WholeCourse).
struct Keep {
  bool all = true;
  MetricSet metrics;
};

/// Takes the measurements of one trial as they are read, and keeps the records: those at which a metric was better than at any before.
/// Cost: 96 bytes a kept measurement. The first and the last are kept too.
///
/// Why that is exact. Which step reaches a goal first, and the best value within a budget, are a record each, whatever the goal and the
/// budget; what another metric has there stands in the same measurement, and how many evaluations there were until then and which was the
/// one before stand beside it. Whether the untrained model is at the goal is asked of the first, how long a trial was watched of the last.
/// Nothing asks for a value that is no record.
class RecordKeeper {
 public:
  explicit RecordKeeper(MetricSet metrics) : metrics_(metrics) { whole_.kept = metrics; }
  /// Steps rise.
  void add(const Measurement& measurement);
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

// The files.

/// Writes the study below `folder`: all of it or nothing. Error(kBadInput) where a batch size of it is there already, or a name can not be
/// a folder's. Returns the folder of the workload.
std::string export_archive(const StudyData& study, const std::string& folder);

/// Whether there is a study.json at or up to five folders below `folder`.
bool is_archive(const std::string& folder);

struct ArchivedWorkload {
  std::string folder;                      ///< That of the optimizer.
  std::vector<std::string> batch_folders;  ///< Sorted by batch size where names are numbers.
};
/// `folder` is the root, a group of data sets, a data set, a model, an optimizer, or one batch size: every workload found below.
/// Error(kBadInput) where there is none.
std::vector<ArchivedWorkload> find_workloads(const std::string& folder);
/// Error(kBadInput) with file and line for what is not what it should be. In memory: what `keep` says, 80 bytes a measurement.
StudyData import_workload(const ArchivedWorkload& workload, const Keep& keep = {});
/// One batch size: a study with one batch.
StudyData import_batch(const std::string& batch_folder, const Keep& keep = {});

/// What answers every question of reports and fits: records of the metrics of `goals` and of the goals that the workloads have or may have;
/// where a goal may have to be chosen, of all validation metrics.
Keep keep_for_goals(const std::vector<ArchivedWorkload>& workloads, const std::vector<GoalSpec>& goals, bool may_choose = true);

/// All workloads for a report that asks for `goals`, for their own, and for those of workloads of the same data set or parts of it, since
/// these are laid over each other. `may_choose`: studies beside them have no goal. Where one here has none, its data set's workloads are
/// read once more, with what the choice needs.
std::vector<StudyData> import_for_goals(const std::vector<ArchivedWorkload>& workloads, const std::vector<GoalSpec>& goals,
                                        bool may_choose);

// What Shallue et al. (2019) say of their own workloads and their archive does not: which trials count, how many samples train, what is to
// be reached. Text, figures 1 to 6, and the authors' notebook.

/// 50 or 100, by the three names of the workload.
int64_t published_num_trials(const StudyData& study);

/// 0 where unknown.
int64_t published_num_train_samples(const std::string& dataset);

/// The goal of figure 1, then those that the workload has beside others (models, subsets); empty for other workloads than theirs.
std::vector<GoalSpec> published_goals(const std::string& dataset, const std::string& model);

}  // namespace cohort::study
