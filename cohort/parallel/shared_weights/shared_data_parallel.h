#pragma once
// Data parallelism on one host with shared weights: no all-reduce, no all-gather, and the optimizer's work and state divided. Steps and
// cost: shared_data_parallel.cpp; background: docs/algorithms/shared_data_parallel.md.

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

/// One per model and rank. The module's parameters move to memory mapped by all ranks of the host, so an in-place write by the program
/// affects all ranks, and one by each rank is applied several times. That is Error(kFailed) at the next call or backward(), naming the
/// parameter: only rank 0 may write, and then all call load_weights(). Writes through data() or data_ptr() are noticed at the next step
/// where they change one of four sampled elements. Parameters that get other memory (torch::load()) give their values to ours after the
/// next backward, the same on all ranks; Error(kFailed) where only some ranks did. Error(kBadInput) after a change of type, device or shape
/// (module->to()): convert first, then wrap.
///
/// After backward() `.grad` is this rank's own gradient, after step() undefined: step() replaces a torch::optim optimizer. For other
/// optimizers, and those that call backward() themselves (LBFGS): DataParallel.
class SharedDataParallel : public Strategy {
 public:
  /// Collective. Error(kBadInput) where `group` does not share memory (GroupInternals::arena()); Error(kFailed), naming ranks and
  /// parameter, where the ranks' models differ.
  SharedDataParallel(torch::nn::Module& module, Group group, SharedDataParallelOptions options);
  ~SharedDataParallel() override;

  /// Error(kFailed) where gradients were dropped repeatedly and step() was never called.
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
  void gather_weights() override;  ///< Only checks that the program has not written to them.
  void loaded() override;
  ShardOptimizer* optimizer() override;
  bool divides_optimizer() const override { return true; }

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cohort
