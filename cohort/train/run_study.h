#pragma once
// A whole study on the ranks of a job: rank 0 owns the store and hands out trials, every rank (0 too) trains them.

#include <string>

#include "cohort/study/spec.h"
#include "cohort/world/world.h"

namespace cohort {

struct StudyRunOptions {
  std::string folder;
  bool json = false;   ///< Lines on stdout: trials as they end, last the steps to result of each batch size (of the first goal).
  bool quiet = false;  ///< No progress bar.
  double timeout = 60;
  std::string backend = "auto";
  double snapshot_seconds = 60;  ///< A trial that runs longer saves its state so often.
};

/// Every rank of the job calls it with the same spec. Goes on with what DIR holds. Returns the exit code: 0 when every trial is done, 130
/// when interrupted (Ctrl-C; a second start goes on). Error as Store's; kEnvironment where a rank is lost.
int run_study(const study::StudySpec& spec, const World& world, const StudyRunOptions& options);

/// --dry-run: trials, steps and hours, from costs measured here on one rank; as text for people, or JSON lines.
void forecast_study(const study::StudySpec& spec, int num_workers, bool json);

}  // namespace cohort
