#pragma once
// The place of a strategy where a training keeps more, or other, state than it: what is saved and loaded is asked of others.

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "cohort/parallel/strategy/strategy.h"

namespace cohort {

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

}  // namespace cohort
