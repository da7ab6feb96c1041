// What the coordinator tells of a study: each stored trial, and at the end what is left to say and to tidy up.

#include <algorithm>
#include <cstdio>

#include "cohort/base/error.h"
#include "cohort/base/log.h"
#include "cohort/base/text/json.h"
#include "cohort/train/study_run/study_coordinator.h"
#include "cohort/train/study_run/study_summary.h"

namespace cohort {

using study::BatchSpec;
using study::Trial;

void StudyCoordinator::report(size_t batch, const Trial& trial) {
  if (!options_.json) return;
  std::printf("%s\n", trial_line(spec_.batches[batch].batch_size, trial).c_str());
  std::fflush(stdout);
}

/// All of this run's trials are stored. What an interrupted run of other batch sizes left stays.
void StudyCoordinator::remove_files() {
  bool has_others = false;
  in_progress_->restore(
      [&](int64_t batch_size, int64_t, int64_t) {
        const bool is_other =
            std::none_of(spec_.batches.begin(), spec_.batches.end(), [&](const BatchSpec& one) { return one.batch_size == batch_size; });
        has_others = has_others || is_other;
        return is_other;
      },
      [](int64_t, const Trial&) {});
  if (!has_others) in_progress_->remove_all();
}

void StudyCoordinator::conclude(int code) {
  const study::StudyData data = store_->read();
  store_->set_note("work_saved", work_saved(data, store_->spec()).dump());
  if (code != 0) {
    log_info(concat("stopped; the same command goes on with ", options_.folder));
    return;
  }
  remove_files();
  if (!options_.summary) return;
  if (options_.json) print_steps_lines(data, spec_);
  else print_steps_table(data, spec_, options_.folder);
}

}  // namespace cohort
