#pragma once
// A whole study on the ranks of a job: rank 0 owns the store and hands out trials, every rank (0 too) trains them.

#include <cstdint>
#include <memory>
#include <string>

#include "cohort/study/spec/spec.h"
#include "cohort/world/messages/message_listener.h"
#include "cohort/world/world.h"

namespace cohort {

struct TrialData;

/// What trials train on. Opened before ranks are forked, so that they share its memory.
struct StudyWorkload {
  std::shared_ptr<const TrialData> data;  ///< None for the noisy quadratic.
  int64_t num_train_samples = 0;
};
/// Reads the data. Errors as open_data's and TrialData's.
StudyWorkload open_study_workload(const study::StudySpec& spec);

struct StudyRunOptions {
  std::string folder;
  bool json = false;   ///< Lines on stdout: trials as they are decided, last the steps to result of each batch size (of the first goal).
  bool quiet = false;  ///< No progress bar.
  double timeout = 60;
  std::string backend = "auto";
  double snapshot_seconds = 60;  ///< A trial that runs longer saves its state so often.
  /// Made before the ranks were forked; null: rank 0 listens, on loopback where all ranks are on one host, and tells the job's store where.
  MessageListener* listener = nullptr;
};

/// Every rank of the job calls it with the same spec. Goes on with what DIR holds. Returns the exit code: 0 when every trial is done, 130
/// when interrupted (Ctrl-C; a second start goes on). Errors as Store's; a trial's own on its rank; kEnvironment on the others, and where
/// rank 0 is lost.
int run_study(const study::StudySpec& spec, const StudyWorkload& workload, const World& world, const StudyRunOptions& options);

/// --dry-run: trials, steps and hours, from costs measured here on one rank; as text for people, or JSON lines. `folder` may hold a part
/// already, or be empty. Writes nothing.
void forecast_study(const study::StudySpec& spec, const StudyWorkload& workload, const std::string& folder, int num_workers, bool json);

}  // namespace cohort
