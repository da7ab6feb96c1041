#pragma once
// For tests: an archive of studies, read whole.

#include <string>
#include <vector>

#include "cohort/study/archive/archive.h"

namespace cohort::study {

inline std::vector<StudyData> import_archive(const std::string& folder, const Keep& keep = {}) {
  std::vector<StudyData> studies;
  for (const ArchivedWorkload& workload : find_workloads(folder)) studies.push_back(import_workload(workload, keep));
  return studies;
}

}  // namespace cohort::study
