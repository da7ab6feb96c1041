#pragma once
// Rank 0's side of a running study: owns the store, hands out trials, receives their results. Torch-free; rank 0 also trains like any other
// rank. The protocol: docs/algorithms/study_run.md.

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

/// Detects that a worker has been silent for longer than is usual for it. Times are seconds of any one clock.
class SilenceWatch {
 public:
  /// Silences below `least_seconds` are not reported.
  explicit SilenceWatch(double least_seconds) : least_seconds_(least_seconds) {}

  /// Starts to expect messages.
  void begin(double now);
  void on_message(double now);
  /// The length of the silence where it should be reported: when it is several times the usual, then at each doubling.
  std::optional<double> overdue(double now);
  /// Running mean of the times between messages; -1 while unknown.
  double usual_seconds() const { return usual_seconds_; }

 private:
  double least_seconds_, usual_seconds_ = -1, received_at_ = 0, reported_seconds_ = 0;
};

struct CoordinatorOptions {
  std::string folder;
  int num_ranks = 1;
  bool json = false;
  bool quiet = false;
  bool summary = true;  ///< Prints the steps to result at the end, as a table or as lines.
  int64_t num_train_samples = 0;
  double join_seconds = 60;                     ///< Time for all ranks to connect.
  double stop_seconds = 20;                     ///< Time after Ctrl-C for workers to finish their step and save.
  double timeout = 60;                          ///< Shortest silence of a worker with a trial that is reported.
  std::function<void()> on_all_connected = {};  ///< Called once, before trials are handed out.
};

/// Constructed and run on one thread, which makes all calls of SQLite.
class StudyCoordinator {
 public:
  /// Ranks connect as clients named "rank 0", "rank 1" and so on.
  StudyCoordinator(study::StudySpec spec, CoordinatorOptions options, MessageServer server);
  ~StudyCoordinator();
  /// Waits for all ranks, opens the store and continues from its trials. Returns 0 when every trial is stored, 130 when interrupted.
  /// Errors, after the workers were notified: as Store::open(), those of a worker, and kEnvironment where ranks do not connect or none is
  /// left.
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
  void receive(double seconds);
  void on_event(const PeerEvent& event);
  void on_joined(const PeerEvent& event);
  void on_message(Worker& worker, const std::string& message);
  void warn_of_silent_workers();
  void handle(Worker& worker, const Json& json);
  void trial_ended(Worker& worker, const Json& json);
  void store_decided(size_t batch, const study::Trial* just_ended);
  void push_bounds(size_t batch);
  void send(Worker& worker, const Json& message);
  void on_lost(Worker& worker, const std::string& why);
  [[noreturn]] void fail_without();
  void end(int code, const std::string& why, double drain_seconds);
  void print_trial(size_t batch, const study::Trial& trial);
  void show_progress();
  void remove_files();
  void print_results(int code);
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
  std::vector<std::string> lost_;  ///< "rank 3 is gone" for each lost rank.
  std::string team_failure_;       ///< Why a team cannot continue; "" while all can.
  double work_done_ = 0;
  int failed_rank_ = -1;
  bool has_begun_ = false, ending_ = false, ignores_messages_ = false;  ///< ignores_messages_: after an error.
};

}  // namespace cohort
