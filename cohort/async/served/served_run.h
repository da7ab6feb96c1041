#pragma once
// Rank 0 of a training whose workers do not wait: the thread that serves, and what the loop beside it tells, evaluates and saves.

#include <atomic>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cohort/async/async_training.h"
#include "cohort/async/served/model_server.h"
#include "cohort/async/ticket_work.h"
#include "cohort/train/loop.h"
#include "cohort/train/run_reporter.h"
#include "cohort/train/run_saver.h"
#include "cohort/train/run_setup.h"
#include "cohort/train/train_result.h"
#include "cohort/world/messages/message_client.h"

namespace cohort {

class LayerGraph;

/// The caller's thread works, tells, evaluates and saves; one of its own serves. `run`, of a world of one rank, must outlive it.
class ServedRun {
 public:
  /// Before the RunSaver: what it saves and loads is asked of this object from now on. Error(kBadInput) where a worker would have no
  /// samples.
  /// `may_come`: whether that worker, of which nothing was heard, may be on its way.
  ServedRun(RunSetup& run, int num_workers, std::function<bool(int)> may_come);
  ~ServedRun();

  /// `fingerprint`: of the data. Before train().
  void let_join(std::string fingerprint) { fingerprint_ = std::move(fingerprint); }
  /// What one worker is sent for a ticket.
  std::vector<at::Tensor> served() const { return async_.mode->served(); }

  /// `server` and `client` are two ends of one connection, `configuration` what workers must say.
  TrainResult train(MessageServer server, MessageClient client, const std::string& configuration, RunSaver& saver, RunReporter& reporter);

 private:
  /// A whole version, and all that a checkpoint has beside it.
  struct Snapshot {
    std::vector<at::Tensor> weights, buffers;
    std::vector<FlatPiece> pieces;
  };
  /// Steps after `from`, up to `step`'s, are over.
  struct StepsOver {
    int64_t from = 0;
    StepResult step;
    std::unique_ptr<Snapshot> snapshot;  ///< Where something is to be done with it.
    bool last = false;
  };

  // Of the serving thread.
  void serve(MessageServer messages, const std::string& configuration);
  void applied(const ServedPush& push);
  std::unique_ptr<Snapshot> snapshot() const;

  // Of the caller's.
  void take_up(AfterStep& after);
  void work(MessageClient client, const std::string& configuration, AfterStep& after);
  void tell_end(int64_t steps, RunReporter& reporter) const;
  void join(const std::string& why);

  std::string key() const;
  void add_optimizer(std::vector<FlatPiece>& pieces) const;
  std::vector<FlatPiece> saved_pieces() const;
  std::vector<FlatPiece> loaded_pieces();
  void after_loading();

  RunSetup& run_;
  int num_workers_;
  std::function<bool(int)> may_come_;
  std::string fingerprint_;                   // "": nobody may join.
  TicketWork ticket_work_;                    // On run_.model.
  std::shared_ptr<LayerGraph> served_model_;  // Another, which holds the newest version.
  ServedModel own_, served_;
  AsyncTraining async_;
  std::unique_ptr<WorkerSide> side_;  // Of worker 0, on run_.model.

  int64_t steps_served_ = 0;
  double computing_seconds_ = 0, push_seconds_ = 0;  // Of the step that is being made.

  std::mutex mutex_;  // Of what follows up to is_over_.
  std::deque<StepsOver> over_;
  size_t num_snapshots_ = 0;  // In over_.
  std::exception_ptr failure_;
  std::string end_reason_;
  std::atomic<bool> wants_end_ = false, is_over_ = false;
  std::thread thread_;

  std::unique_ptr<Snapshot> shown_;  // What run_.model held when it was last evaluated or saved.
};

}  // namespace cohort
