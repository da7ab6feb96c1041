#pragma once
// Plain data parallelism: every rank has the weights and the whole optimizer, and gradients are summed by DataParallel.

#include <torch/nn/module.h>

#include "cohort/parallel/common/parameters.h"
#include "cohort/parallel/strategy/data_parallel.h"
#include "cohort/parallel/strategy/strategy.h"
#include "cohort/parallel/watch/weight_watch.h"

namespace cohort {

/// Also the strategy of one process, without exchanges.
class Replicated : public Strategy {
 public:
  /// Collective. Uses kSum whatever `options.mean` is.
  Replicated(torch::nn::Module& module, Group group, UpdateRule rule, DataParallelOptions options = {});

  void zero_grad() override;
  void set_gradient_factor(double factor) override;
  void set_sync(bool on) override { parallel_.set_sync(on); }
  void set_buffer_share(double share) override { parallel_.set_buffer_share(share); }
  void set_control(int slot, float value) override { parallel_.set_control(slot, value); }
  float control_sum(int slot) const override { return parallel_.control_sum(slot); }
  void exchange_without_backward() override { parallel_.exchange_without_backward(); }
  void finish_backward() override {}  // backward() does not return before the exchange has ended.
  void abandon_step() override { parallel_.abandon_step(); }
  StepOutcome step(const StepOptions& options) override;
  const ExchangeStatistics& statistics() const override { return parallel_.statistics(); }
  MemoryForecast memory_forecast() const override;
  std::vector<FlatPiece> saved_pieces() override;
  std::vector<FlatPiece> loaded_pieces() override;
  void load_weights() override;
  void loaded() override;
  ShardOptimizer* optimizer() override { return &optimizer_; }

 private:
  std::vector<FlatPiece> pieces(bool saving);
  /// Copies values from memory that the program assigned (torch::load()) to the optimizer's.
  void take_over();

  torch::nn::Module& module_;
  Group group_;
  const bool compresses_;  ///< Then gradients are already multiplied by gradient_factor().
  std::vector<NamedTensor> all_, trained_;
  DataParallel parallel_;
  ShardOptimizer optimizer_;
  WeightWatch weight_watch_{"the strategy"};  ///< The optimizer uses the weights' original memory.
};

}  // namespace cohort
