#pragma once
// Rank 0's side of a running study: owns the store, hands out trials, hears how they end. Torch-free; beside it rank 0 trains like any
// other rank. What is said: docs/algorithms/study_run.md.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/base/text/json_fwd.h"
#include "cohort/study/search/study_queue.h"
#include "cohort/study/spec/spec.h"
#include "cohort/study/store/in_progress.h"
#include "cohort/study/store/store.h"
#include "cohort/trials/study_progress.h"
#include "cohort/world/messages/message_server.h"

namespace cohort {

// Whether a worker has said nothing for longer than is usual for it. Torch-free; times in seconds of any one clock.

class SilenceWatch {
 public:
  /// Nothing is remarked before `least_seconds`.
  explicit SilenceWatch(double least_seconds) : least_seconds_(least_seconds) {}

  /// From now on something is expected.
  void begin(double now);
  void heard(double now);
  /// The length of the silence, when it is time to remark on it: once it is several times the usual, then at each doubling.
  std::optional<double> overdue(double now);
  /// Running mean of the times between messages; -1 while unknown.
  double usual_seconds() const { return usual_seconds_; }

 private:
  double least_seconds_, usual_seconds_ = -1, heard_at_ = 0, remarked_seconds_ = 0;
};

struct CoordinatorOptions {
  std::string folder;
  int num_ranks = 1;
  bool json = false;
  bool quiet = false;
  bool summary = true;  ///< Prints the steps to result at the end, as a table or as lines.
  int64_t num_train_samples = 0;
  double join_seconds = 60;                  ///< For all ranks to come.
  double stop_seconds = 20;                  ///< After Ctrl-C workers may finish their step and save for so long.
  double timeout = 60;                       ///< A worker that runs a trial may be silent for so long at least before that is remarked on.
  std::function<void()> all_have_come = {};  ///< Called once, before anything is handed out.
};

/// Made and run on one thread: all calls of SQLite are on it.
class StudyCoordinator {
 public:
  /// Ranks come as clients named "rank 0", "rank 1" and so on.
  StudyCoordinator(study::StudySpec spec, CoordinatorOptions options, MessageServer server);
  ~StudyCoordinator();
  /// Waits for all ranks, opens the store and takes up what it holds. 0 when every trial is stored, 130 when interrupted. Throws what went
  /// wrong, after the workers were told: Error as Store::open's, with a worker's own sentence, or kEnvironment when ranks did not come or
  /// none is left.
  int run();
  /// The rank whose failure run() threw, or -1.
  int failed_rank() const { return failed_rank_; }

 private:
  struct Worker;
  struct Running;

  void wait_for_ranks();
  void open();
  void restore_batch(size_t index, const std::vector<study::Trial>& stored);
  int run_phases();
  void start_phase(int team);
  void hand_out();
  void listen(double seconds);
  void heard(const PeerEvent& event);
  void joined(const PeerEvent& event);
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
  bool can_train() const;

  study::StudySpec spec_;
  CoordinatorOptions options_;
  MessageServer server_;
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
  bool has_begun_ = false, ending_ = false, deaf_ = false;  ///< deaf_: what workers still say does not matter.
};

}  // namespace cohort
