#pragma once
// Data parallelism on one host with one copy of the weights: no all-reduce, no all-gather, the optimizer's work and state divided.
//
// See shared_data_parallel.cpp for the steps and the cost, docs/algorithms/shared_data_parallel.md for the story.

#include <torch/nn/module.h>

#include <memory>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/parallel/strategy/strategy.h"

namespace cohort {

struct SharedDataParallelOptions {
  UpdateRule rule;
  bool broadcast_model = true;  ///< Every rank starts with rank 0's parameters and buffers.
};

/// One per model and rank. The module's parameters move to memory that all ranks of the host map: what a rank writes to them in place is
/// written for all, and where each rank writes it is written as often as there are ranks. So that is refused, Error(kFailed) at the next
/// call or backward(), naming the parameter: rank 0 alone writes, and then all call load_weights(). What is written through data() or
/// data_ptr() is seen at the next step where it changes one of four elements of a parameter. Other memory for a parameter (torch::load())
/// gives its values to ours when the next backward has finished, the same on all ranks; Error(kFailed) where only some ranks did.
/// Error(kBadInput) where its type, device or shape was changed (module->to()): convert first, then wrap.
///
/// After backward() `.grad` is this rank's own gradient, not the mean, and after step() undefined: step() takes the place of a torch::optim
/// optimizer. For other optimizers, and such as call backward() themselves (LBFGS): DataParallel.
class SharedDataParallel : public Strategy {
 public:
  /// Collective. `group` must share memory (GroupInternals::arena()): Error(kBadInput) otherwise. Error(kFailed), naming ranks and
  /// parameter, when the ranks' models differ.
  SharedDataParallel(torch::nn::Module& module, Group group, SharedDataParallelOptions options);
  ~SharedDataParallel() override;

  /// Error(kFailed) where gradients were dropped time and again and step() was never called.
  void zero_grad() override;
  void skip_step() override;
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
  /// Error(kFailed), naming them, where several ranks wrote to a parameter in place.
  void load_weights() override;
  void part_from_module() override;
  void gather_weights() override;  ///< They are whole; throws where the program wrote to them.
  void loaded() override;
  ShardOptimizer* optimizer() override;
  bool divides_optimizer() const override { return true; }

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cohort
