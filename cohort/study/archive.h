#pragma once
// The public layout of the batch-size study's raw data: DATASET/MODEL/OPTIMIZER/BATCH/{study.json, TRIAL/{metadata.json,
// measurements.csv}}. docs/formats/study_archive.md.

#include <string>
#include <vector>

#include "cohort/study/data.h"

namespace cohort::study {

/// Writes the study below `folder`. Error(kBadInput) where a batch size of it is there already.
void export_archive(const StudyData& study, const std::string& folder);

/// `folder` is the root, a data set, a model, an optimizer, or one batch size: every workload found below. Error(kBadInput) with file and
/// line for what is not what it should be.
std::vector<StudyData> import_archive(const std::string& folder);
/// Whether there is a study.json at or up to four folders below `folder`.
bool is_archive(const std::string& folder);

}  // namespace cohort::study
