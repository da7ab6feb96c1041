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

/// The data of trials. Opened before ranks are forked, so that they share its memory.
struct StudyWorkload {
  std::shared_ptr<const TrialData> data;  ///< Null for the noisy quadratic.
  int64_t num_train_samples = 0;
};
/// Reads the data. Errors as open_data() and TrialData.
StudyWorkload open_study_workload(const study::StudySpec& spec);

struct StudyRunOptions {
  std::string folder;
  bool json = false;   ///< Prints JSON lines: trials as they are decided, then the steps to result of each batch size at the first goal.
  bool quiet = false;  ///< No progress bar.
  double timeout = 60;
  std::string backend = "auto";
  double snapshot_seconds = 60;  ///< Interval at which a running trial saves its state.
  /// Created before the ranks were forked. Null: rank 0 listens, on loopback where all ranks are on one host, and publishes its endpoint in
  /// the job's store.
  MessageListener* listener = nullptr;
};

/// Called by every rank of the job with the same spec. Continues the study in the folder. Returns the exit code: 0 when every trial is
/// done, 130 when interrupted (a second start continues). Errors as Store; those of a trial on its rank, and kEnvironment on the others and
/// where rank 0 is lost.
int run_study(const study::StudySpec& spec, const StudyWorkload& workload, const World& world, const StudyRunOptions& options);

/// --dry-run: prints trials, steps and hours from costs measured here on one rank, as a table or as JSON lines. `folder` may hold a part of
/// the study. Writes no files.
void forecast_study(const study::StudySpec& spec, const StudyWorkload& workload, const std::string& folder, int num_workers, bool json);

}  // namespace cohort
