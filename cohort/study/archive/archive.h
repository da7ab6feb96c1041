#pragma once
// The public layout of the batch-size study's raw data: DATASET/MODEL/OPTIMIZER/BATCH/{study.json, TRIAL/{metadata.json,
// measurements.csv}}. docs/formats/study_archive.md.

#include <functional>
#include <string>
#include <vector>

#include "cohort/study/archive/kept_measurements.h"
#include "cohort/study/spec/data.h"

namespace cohort::study {

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

}  // namespace cohort::study
