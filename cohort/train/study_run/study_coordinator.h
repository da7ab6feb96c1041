#pragma once
// Rank 0's side of a running study: owns the store, hands out trials, hears how they end. Torch-free; beside it rank 0 trains like any
// other rank. What is said over the links: docs/algorithms/study_run.md.

#include <memory>
#include <string>
#include <vector>

#include "cohort/base/text/json_fwd.h"
#include "cohort/study/analysis/in_progress.h"
#include "cohort/study/search/study_queue.h"
#include "cohort/study/spec/spec.h"
#include "cohort/study/store/store.h"
#include "cohort/train/study_run/study_progress.h"
#include "cohort/world/message_link.h"

namespace cohort {

struct CoordinatorOptions {
  std::string folder;
  bool json = false;
  bool quiet = false;
  bool summary = true;  ///< Prints the steps to result at the end, as a table or as lines.
  int64_t num_train_samples = 0;
  double stop_seconds = 20;  ///< After Ctrl-C workers may finish their step and save for so long.
  double timeout = 60;       ///< A worker that runs a trial may be silent for so long at least before that is remarked on.
};

/// Made and run on one thread: all calls of SQLite are on it.
class StudyCoordinator {
 public:
  /// links[r]: to rank r; all ranks. Opens the store and takes up what it holds. Errors as Store::open's, after the workers were told.
  StudyCoordinator(study::StudySpec spec, CoordinatorOptions options, std::vector<MessageLink> links);
  ~StudyCoordinator();
  /// 0 when every trial is stored, 130 when interrupted. Throws what went wrong, after the workers were told: Error with a worker's own
  /// sentence, or kEnvironment when none is left.
  int run();
  /// The rank whose failure run() threw, or -1.
  int failed_rank() const { return failed_rank_; }

 private:
  struct Worker;
  struct Running;

  void open();
  void restore_batch(size_t index, const std::vector<study::Trial>& stored);
  int run_phases();
  void start_phase(int team);
  void hand_out();
  void listen(double seconds);
  void hear(Worker& worker, const std::string& message);
  void warn_of_silence();
  void obey(Worker& worker, const Json& json);
  void trial_ended(Worker& worker, const Json& json);
  void store_decided(size_t batch, const study::Trial* just_ended);
  void push_bounds(size_t batch);
  void tell(Worker& worker, const Json& message);
  void lose(Worker& worker, const std::string& why);
  [[noreturn]] void end_without();
  void end(int code, const std::string& why, double drain_seconds);
  void report(size_t batch, const study::Trial& trial);
  void show_progress();
  void remove_files();
  void conclude(int code);
  int num_running() const;

  study::StudySpec spec_;
  CoordinatorOptions options_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::unique_ptr<study::Store> store_;
  std::unique_ptr<study::InProgress> in_progress_;
  study::StudyQueue queue_;
  StudyProgress progress_;
  int team_ = 1;                   ///< Ranks of a team in the current phase.
  std::vector<std::string> lost_;  ///< "rank 3 is gone" for each rank that is lost.
  std::string broken_;             ///< Why a team can not go on; "" while all can.
  double work_done_ = 0;
  int failed_rank_ = -1;
  bool ending_ = false, deaf_ = false;  ///< deaf_: what workers still say does not matter.
};

}  // namespace cohort
