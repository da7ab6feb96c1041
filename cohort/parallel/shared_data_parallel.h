#pragma once
// Data parallelism on one host with one copy of the weights: no all-reduce, no all-gather, the optimizer's work and state divided.
//
// See shared_data_parallel.cpp for the steps and the cost, docs/algorithms/shared_data_parallel.md for the story.

#include <torch/nn/module.h>

#include <memory>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/parallel/strategy.h"

namespace cohort {

struct SharedDataParallelOptions {
  UpdateRule rule;
  bool broadcast_model = true;  ///< Every rank starts with rank 0's parameters and buffers.
};

/// One per model and rank. The module's parameters move to memory that all ranks of the host map: a rank must not write to them by itself.
/// After backward() `.grad` is this rank's own gradient, not the mean.
class SharedDataParallel : public Strategy {
 public:
  /// Collective. `group` must share memory (group.arena()): Error(kBadInput) otherwise. Error(kFailed), naming ranks and parameter, when
  /// the ranks' models differ.
  SharedDataParallel(torch::nn::Module& module, Group group, SharedDataParallelOptions options);
  ~SharedDataParallel() override;

  void zero_grad() override;
  void set_sync(bool on) override;
  void set_buffer_share(double share) override;
  void set_control(int slot, float value) override;
  float control_sum(int slot) const override;
  void exchange_without_backward() override;
  void finish_backward() override;
  void abandon_step() override;
  StepOutcome step(const StepOptions& options) override;
  const ExchangeStatistics& statistics() const override;
  MemoryForecast memory_forecast() const override;
  std::vector<FlatPiece> saved_pieces() override;
  std::vector<FlatPiece> loaded_pieces() override;
  void loaded() override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cohort
