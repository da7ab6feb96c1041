#pragma once
// The public layout of the batch-size study's raw data: DATASET/MODEL/OPTIMIZER/BATCH/{study.json, TRIAL/{metadata.json,
// measurements.csv}}. docs/formats/study_archive.md.

#include <functional>
#include <string>
#include <vector>

#include "cohort/study/data.h"

namespace cohort::study {

/// Writes the study below `folder`: all of it or nothing. Error(kBadInput) where a batch size of it is there already, or a name can not be
/// a folder's. Returns the folder of the workload.
std::string export_archive(const StudyData& study, const std::string& folder);

/// `folder` is the root, a group of data sets, a data set, a model, an optimizer, or one batch size: every workload found below.
/// Error(kBadInput) with file and line for what is not what it should be. All of it at once in memory: some 80 bytes a measurement.
std::vector<StudyData> import_archive(const std::string& folder);
/// Whether there is a study.json at or up to five folders below `folder`.
bool is_archive(const std::string& folder);

/// The same in pieces, for archives larger than memory.
struct ArchivedWorkload {
  std::string folder;                      ///< That of the optimizer.
  std::vector<std::string> batch_folders;  ///< Sorted by batch size where names are numbers.
};
std::vector<ArchivedWorkload> find_workloads(const std::string& folder);
StudyData import_workload(const ArchivedWorkload& workload);
/// One batch size: a study with one batch.
StudyData import_batch(const std::string& batch_folder);

}  // namespace cohort::study
