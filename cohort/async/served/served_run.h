#pragma once
// Rank 0 of an asynchronous training: a thread that serves the model, and the caller's thread, which is worker 0 and also reports,
// evaluates and saves.

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

/// `run`, of a world of one rank, must outlive it.
class ServedRun {
 public:
  /// Construct before the RunSaver, whose state this object provides from then on. `may_connect`: whether that worker, which has not
  /// connected yet, may still do so. Error(kBadInput) if a worker would have no samples.
  ServedRun(RunSetup& run, int num_workers, std::function<bool(int)> may_connect);
  ~ServedRun();

  /// Lets further workers join. `fingerprint`: of the data. Call before train().
  void let_join(std::string fingerprint) { fingerprint_ = std::move(fingerprint); }
  /// What a worker is sent for a work item.
  std::vector<at::Tensor> served_tensors() const { return async_.mode->served_tensors(); }

  /// `client` is connected to `server`; `configuration` is what workers must have.
  TrainResult train(MessageServer server, MessageClient client, const std::string& configuration, RunSaver& saver, RunReporter& reporter);

 private:
  /// A complete version, and everything that a checkpoint holds beside it.
  struct Snapshot {
    std::vector<at::Tensor> weights, buffers;
    std::vector<FlatPiece> pieces;
  };
  /// The steps after `from` up to that of `step`.
  struct FinishedSteps {
    int64_t from = 0;
    StepResult step;
    std::unique_ptr<Snapshot> snapshot;  ///< If there is something to evaluate or save.
  };

  // The serving thread.
  void serve(MessageServer messages, const std::string& configuration);
  void on_applied(const ServedPush& push);
  std::unique_ptr<Snapshot> snapshot() const;

  // The caller's thread.
  void process_finished_steps(AfterStep& after);
  void work(MessageClient client, const std::string& configuration, AfterStep& after);
  void log_summary(int64_t steps, RunReporter& reporter) const;
  void join(const std::string& why);

  std::string key() const;
  std::vector<FlatPiece> saved_pieces() const;
  std::vector<FlatPiece> loaded_pieces();
  void after_loading();

  RunSetup& run_;
  int num_workers_;
  std::function<bool(int)> may_connect_;
  std::string fingerprint_;                   // "": nobody may join.
  TicketWork ticket_work_;                    // On run_.model.
  std::shared_ptr<LayerGraph> served_model_;  // A second model, which holds the newest version.
  ServedModel own_, served_;
  AsyncTraining async_;
  std::unique_ptr<AsyncWorker> worker_;  // Worker 0, on run_.model.

  int64_t steps_served_ = 0;
  double computing_seconds_ = 0, push_seconds_ = 0;  // Of the current step.

  std::mutex mutex_;  // Guards the next four.
  std::deque<FinishedSteps> finished_;
  size_t num_snapshots_ = 0;  // In finished_, or being processed.
  std::exception_ptr failure_;
  std::string end_reason_;
  std::atomic<bool> stop_serving_ = false, is_over_ = false;
  std::thread thread_;

  std::unique_ptr<Snapshot> current_;  // The version in run_.model when it was last evaluated or saved.
};

}  // namespace cohort
