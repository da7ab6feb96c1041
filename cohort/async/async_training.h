#pragma once
// What trainings have in common whose workers do not wait, whoever drives them: tickets, mode, accounts, what pushes add up to until a step
// is over, and what is saved beside the model.

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/async/accounts.h"
#include "cohort/async/async_mode.h"
#include "cohort/async/local_server.h"
#include "cohort/base/text/json_fwd.h"
#include "cohort/data/tickets.h"
#include "cohort/job/specs/sync_mode.h"
#include "cohort/parallel/common/flat_piece.h"
#include "cohort/parallel/strategy/strategy.h"
#include "cohort/record/async_record.h"
#include "cohort/train/run_setup.h"
#include "cohort/train/step/training_step.h"

namespace cohort {

class LayerGraph;

// The place of a strategy where a training keeps more, or other, state than it: what is saved and loaded is asked of others.

struct StateOwner {
  std::function<std::vector<FlatPiece>()> saved;   ///< All but the model's own tensors, "model/NAME", which the strategy has.
  std::function<std::vector<FlatPiece>()> loaded;  ///< The same, to read into.
  std::function<void()> after_loading;
};

/// All else is the strategy's.
class SavedState : public Strategy {
 public:
  SavedState(std::unique_ptr<Strategy> strategy, StateOwner owner) : strategy_(std::move(strategy)), owner_(std::move(owner)) {}

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
  std::vector<FlatPiece> saved_pieces() override { return with_model(strategy_->saved_pieces(), owner_.saved()); }
  std::vector<FlatPiece> loaded_pieces() override { return with_model(strategy_->loaded_pieces(), owner_.loaded()); }
  void loaded() override {
    strategy_->loaded();
    owner_.after_loading();
  }

 private:
  static std::vector<FlatPiece> with_model(std::vector<FlatPiece> of_strategy, std::vector<FlatPiece> pieces) {
    for (FlatPiece& piece : of_strategy)
      if (piece.name.starts_with("model/")) pieces.push_back(std::move(piece));
    return pieces;
  }

  std::unique_ptr<Strategy> strategy_;
  StateOwner owner_;
};

/// Steps are cut into a share a worker, and a ticket is of as many as `sync` says. `workers_setting` names what said how many: "--workers
/// ". Error(kBadInput) where one of them would have no samples.
TicketOptions ticket_options(const Config& config, const DataSource& samples, const LayerGraph& model, int64_t total_steps, int num_workers,
                             const std::string& workers_setting, const SyncMode& sync);

/// What pushes add up to since the last step that was over.
class StepWindow {
 public:
  void begin();
  void add(const AppliedPush& push);
  /// The steps after `from` up to `step` (from 1) are over. Their seconds are real ones, since begin(), and those of their parts the
  /// caller's: of one of them, the mean, for each has a line of its own.
  StepResult result(const RunSetup& run, int64_t from, int64_t step, double compute_seconds, double optimizer_seconds) const;

 private:
  double loss_ = 0, weight_ = 0, gradient_norm_ = 0, began_ = 0;
  int64_t samples_ = 0;
};

/// For `model`, which must outlive it.
std::unique_ptr<WorkerSide> make_worker_side(const torch::nn::Module& model, const Job& job);

struct AsyncTraining {
  /// `module`, which the model is of, and `run` must outlive it.
  AsyncTraining(const RunSetup& run, const torch::nn::Module& module, int num_workers, const std::string& workers_setting);

  StepNumbers numbers() const;  ///< Of the step that is being made now.
  int64_t most_ahead() const;   ///< As Tickets::take() has it.

  /// What of the training keys begin with.
  std::string how() const;
  /// What is saved for `key`, which says what must be the same for tickets and accounts to go on as they were.
  Json state(const std::string& key) const;
  /// Reads what the newest checkpoint of the run has for `key`, and sets tickets and accounts to it; the mode's tensors, to read into.
  std::vector<FlatPiece> load(const std::string& key);
  /// What load() found; null where the checkpoint has none of this, or for another key, which is said then.
  const Json& found() const { return *found_; }
  const std::string& found_where() const { return found_where_; }
  /// After all tensors were read.
  void loaded();

  /// Without what is the clock's.
  AsyncRecord record(int64_t steps) const;

  const RunSetup& run;
  const SyncMode sync;
  TicketOptions options;
  Tickets tickets;
  Accounts accounts;
  std::unique_ptr<AsyncModel> model;
  AsyncMode* mode = nullptr;      ///< The same; null with local and diloco without a quorum,
  LocalModels* local = nullptr;   ///< where it is this.
  LocalServer* quorum = nullptr;  ///< The mode with one.
  StepWindow window;

 private:
  std::shared_ptr<Json> found_;
  std::string found_where_;
};

/// "12 pushes, half of them at most 1 pushes late [...]; 1 lost with 2 deaths".
std::string summary_of(const AsyncRecord& record);

/// JSON as a tensor of a checkpoint.
FlatPiece async_state_piece(const Json& state);
/// `run`'s checkpoints hold what `owner` says from now on: before its RunSaver.
void save_state_of(RunSetup& run, StateOwner owner);

}  // namespace cohort
