// A study from whatever holds it: a store, or the folder of an archive.

#include <unistd.h>

#include "cohort/base/fail.h"
#include "cohort/study/archive/archive.h"
#include "cohort/study/store/store.h"

namespace cohort::study {
namespace {

/// Null where the folder holds a store.
std::optional<ArchivedWorkload> archived_workload(const std::string& folder) {
  if (::access((folder + "/study.db").c_str(), F_OK) == 0) return std::nullopt;
  if (::access(folder.c_str(), F_OK) != 0) fail(ErrorCode::kBadInput, folder, ": there is no such folder");
  if (!is_archive(folder))
    fail(ErrorCode::kBadInput, folder, " holds no study: neither study.db nor an archive's study.json in it or below it");
  const std::vector<ArchivedWorkload> workloads = find_workloads(folder);
  if (workloads.size() > 1)
    fail(ErrorCode::kBadInput, folder, " holds ", workloads.size(), " workloads; give one, such as ", workloads.front().folder);
  return workloads.front();
}

}  // namespace

StudyData read_study(const std::string& folder) {
  const std::optional<ArchivedWorkload> workload = archived_workload(folder);
  return workload ? import_workload(*workload) : Store::open_readonly(folder).read();
}

StudyData read_study_for_goal(const std::string& folder, const std::optional<GoalSpec>& goal) {
  const std::optional<ArchivedWorkload> workload = archived_workload(folder);
  if (!workload) return Store::open_readonly(folder).read();
  return import_workload(*workload, keep_for_goals({*workload}, goal ? std::vector{*goal} : std::vector<GoalSpec>()));
}

}  // namespace cohort::study
