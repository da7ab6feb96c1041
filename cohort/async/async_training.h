#pragma once
// What simulated and real asynchronous trainings share: work queue, mode, statistics, the metrics of a step, and the state saved beside the
// model. A checkpoint holds the newest complete version as "model/..." and "optimizer/...", as every run's does, and beside it
// "async/state" (JSON: work queue, statistics, mode, and what the driver adds) and other "async/..." tensors. A run of another kind (other
// workers, sync or remedy) continues from the version alone.

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/async/async_mode.h"
#include "cohort/async/async_statistics.h"
#include "cohort/async/local_server.h"
#include "cohort/base/text/json_fwd.h"
#include "cohort/data/work_queue.h"
#include "cohort/job/specs/sync_mode.h"
#include "cohort/parallel/common/flat_piece.h"
#include "cohort/parallel/strategy/strategy.h"
#include "cohort/record/async_record.h"
#include "cohort/train/run_setup.h"
#include "cohort/train/step/training_step.h"

namespace cohort {

class LayerGraph;

/// Saves and loads the state of a training, except the model's own tensors "model/NAME", which the strategy has.
struct StateCallbacks {
  std::function<std::vector<FlatPiece>()> saved;
  std::function<std::vector<FlatPiece>()> loaded;  ///< Memory to load into.
  std::function<void()> after_loading;
};

/// A strategy whose save() and load() are forwarded to callbacks.
class StrategyWithState : public Strategy {
 public:
  StrategyWithState(std::unique_ptr<Strategy> strategy, StateCallbacks callbacks)
      : strategy_(std::move(strategy)), callbacks_(std::move(callbacks)) {}

  void zero_grad() override { strategy_->zero_grad(); }
  void set_sync(bool on) override { strategy_->set_sync(on); }
  void set_buffer_share(double share) override { strategy_->set_buffer_share(share); }
  void set_control(int slot, float value) override { strategy_->set_control(slot, value); }
  float control_sum(int slot) const override { return strategy_->control_sum(slot); }
  void exchange_without_backward() override { strategy_->exchange_without_backward(); }
  void finish_backward() override { strategy_->finish_backward(); }
  void abandon_step() override { strategy_->abandon_step(); }
  StepOutcome step(const StepOptions& options) override { return strategy_->step(options); }
  void load_weights() override { strategy_->load_weights(); }
  const ExchangeStatistics& statistics() const override { return strategy_->statistics(); }
  MemoryForecast memory_forecast() const override { return strategy_->memory_forecast(); }
  std::vector<FlatPiece> saved_pieces() override { return with_model(strategy_->saved_pieces(), callbacks_.saved()); }
  std::vector<FlatPiece> loaded_pieces() override { return with_model(strategy_->loaded_pieces(), callbacks_.loaded()); }
  void loaded() override {
    strategy_->loaded();
    callbacks_.after_loading();
  }

 private:
  static std::vector<FlatPiece> with_model(std::vector<FlatPiece> own, std::vector<FlatPiece> pieces) {
    for (FlatPiece& piece : own)
      if (piece.name.starts_with("model/")) pieces.push_back(std::move(piece));
    return pieces;
  }

  std::unique_ptr<Strategy> strategy_;
  StateCallbacks callbacks_;
};

/// Each step is cut into one share per worker; an item covers as many steps as `sync` says. `workers_setting` is the option that gave their
/// number, such as "--workers ", for messages. Error(kBadInput) if a worker would have no samples.
WorkQueueOptions work_queue_options(const Config& config, const DataSource& samples, const LayerGraph& model, int64_t total_steps,
                                    int num_workers, const std::string& workers_setting, const SyncMode& sync);

/// Accumulates the pushes of a step into its metrics.
class StepWindow {
 public:
  void begin();
  void add(const AppliedPush& push);
  /// Metrics of the steps after `from` up to `step` (from 1), each with the mean of their seconds: wall-clock seconds since begin(), and
  /// the caller's for computing and the optimizer.
  StepResult result(const RunSetup& run, int64_t from, int64_t step, double compute_seconds, double optimizer_seconds) const;

 private:
  double loss_ = 0, weight_ = 0, gradient_norm_ = 0, began_ = 0;
  int64_t samples_ = 0;
};

/// `model` must outlive it.
std::unique_ptr<AsyncWorker> make_async_worker(const torch::nn::Module& model, const Job& job);

struct AsyncTraining {
  /// `module`, which holds the model, and `run` must outlive it.
  AsyncTraining(const RunSetup& run, const torch::nn::Module& module, int num_workers, const std::string& workers_setting);

  StepNumbers numbers() const;      ///< Learning rate and clipping of the current step.
  int64_t staleness_bound() const;  ///< Staleness bound in steps; see WorkQueue::take().

  /// The part of a state's key that depends on sync, compression and remedy.
  std::string key_prefix() const;
  /// State to save. `key` describes all that must be equal for work queue and statistics to continue.
  Json state(const std::string& key) const;
  /// Loads work queue and statistics from the newest checkpoint if it has `key`; returns the mode's tensors to load into.
  std::vector<FlatPiece> load(const std::string& key);
  /// The state that load() found; null if the checkpoint has none for that key.
  const Json& loaded_state() const { return *loaded_state_; }
  /// The checkpoint, for messages.
  const std::string& loaded_from() const { return loaded_from_; }
  /// Call after all tensors were loaded.
  void loaded();

  /// Without the fields of the virtual clock.
  AsyncRecord record(int64_t steps) const;

  const RunSetup& run;
  const SyncMode sync;
  WorkQueueOptions options;
  WorkQueue queue;
  AsyncStatistics statistics;
  std::unique_ptr<AsyncModel> model;
  AsyncMode* mode = nullptr;            ///< `model`, except for local and diloco without a quorum.
  LocalModels* local = nullptr;         ///< `model` for local and diloco without a quorum.
  LocalServer* local_server = nullptr;  ///< `model` for local and diloco with a quorum.
  StepWindow window;

 private:
  std::shared_ptr<Json> loaded_state_;
  std::string loaded_from_;
};

/// "12 pushes, half of them at most 1 pushes late [...]; 1 lost with 2 deaths".
std::string async_summary(const AsyncRecord& record);

/// The state as a tensor of a checkpoint.
FlatPiece async_state_piece(const Json& state);
/// From now on `callbacks` provide the state in `run`'s checkpoints. Call before its RunSaver is constructed.
void install_state_callbacks(RunSetup& run, StateCallbacks callbacks);

}  // namespace cohort
