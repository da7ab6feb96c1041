#pragma once
// ZeRO: data parallelism that divides optimizer state (stage 1), gradients (2) and weights (3) between the ranks, for any
// torch::nn::Module.
//
//   cohort::ZeroDataParallel zero(*model, group, {.stage = 3, .rule = {.kind = cohort::UpdateRule::Kind::kAdamW}});
//   ...
//   zero.zero_grad();
//   loss.backward();          // loss: this rank's sum divided by the samples of all ranks
//   zero.finish_backward();
//   zero.step({.learning_rate = 1e-3, .clip_norm = 1});
//
// Bytes a rank, n of parameters, s optimizer numbers a parameter (0 sgd, 1 momentum, 2 adam), p ranks, u the largest unit:
//   stage 1   n + n           + s n/p
//   stage 2   n + n/p + 2 u   + s n/p
//   stage 3   n/p + live_bytes + n/p + 4 u + s n/p
// In stages 2 and 3 two units of gradients are in transit; in stage 3 about two more wait in `.grad`.
//
// Works with: tied, frozen, unused, repeatedly used and empty parameters, several types (trained ones: Float or Double), autocast,
// accumulation, evaluation between steps, modules that are used differently on each rank, parameters on a device (all on one). See
// docs/algorithms/zero.md.

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/comm/group.h"
#include "cohort/parallel/strategy/strategy.h"

namespace cohort {

struct ZeroOptions {
  int stage = 1;                   ///< 1, 2 or 3.
  UpdateRule rule;                 ///< The optimizer.
  int64_t bucket_bytes = 8 << 20;  ///< Of a unit, which is exchanged at once. A larger parameter is a unit of its own.
  int64_t live_bytes = 0;          ///< Stage 3: limit of whole units held; 0: twice the largest. An operator always gets what it needs.
  bool broadcast_model = true;     ///< Every rank starts with rank 0's parameters and buffers.
};

/// One per model and rank; the module must outlive it. One thread: the one that made it also runs forward, backward and every call here.
/// `requires_grad` is as it was at construction. Between a forward and finish_backward() (or finish_evaluation()) of stage 3 the program
/// may use the group only where all ranks have used the same weights before.
///
/// After backward() `.grad` is this rank's own gradient (stage 1) or undefined, and so it is after step() in every stage: step() takes the
/// place of a torch::optim optimizer and of clip_grad_norm_(). Optimizers that call backward() themselves (LBFGS), or that LibTorch's
/// UpdateRule does not have: DataParallel. zero_grad() between steps is optional; between the backwards of a step Module::zero_grad() drops
/// what is in `.grad`, in stages 2 and 3 nothing.
///
/// The program may write to weights outside forward and backward: in place by operators (initialisers, clamp_()), or by other memory
/// (torch::load()), the same on all ranks; Error(kFailed) at the end of the next backward where they differ. In stage 3 code that goes
/// through data_ptr() does so between gather_weights() and release_weights(). See also load_weights(). Error(kBadInput), naming the
/// parameter, where its type, device or shape was changed (module->to()): convert first, then wrap.
///
/// In stage 3 the module's parameters have memory only while an operator reads them, also after this object has ended, unless
/// gather_weights() was called. Errors as in DataParallel.
class COHORT_API ZeroDataParallel : public Strategy {
 public:
  /// Collective. Error(kFailed), naming ranks and parameter, when the ranks' models differ; Error(kBadInput) for a parameter that cannot
  /// be divided.
  ZeroDataParallel(torch::nn::Module& module, Group group, ZeroOptions options);
  ~ZeroDataParallel() override;
  ZeroDataParallel(const ZeroDataParallel&) = delete;
  ZeroDataParallel& operator=(const ZeroDataParallel&) = delete;

  /// Error(kFailed) where gradients were dropped repeatedly, or weights were written to, and step() was never called.
  void zero_grad() override;
  void skip_step() override;
  void set_sync(bool on) override;
  void hold_gradients() override;
  void set_buffer_share(double share) override;
  void set_control(int slot, float value) override;
  float control_sum(int slot) const override;
  /// Ranks may make different numbers of backward() calls in a step: only each one's last has sync on; a rank without samples calls this.
  void exchange_without_backward() override;
  void finish_backward() override;
  void abandon_step() override;
  /// Consumes the gradients. Error(kFailed) where no rank has made a backward() since the last one.
  StepOutcome step(const StepOptions& options) override;

  /// Stage 3, after forwards without backward and before other uses of the group; otherwise without effect. Collective: serves ranks that
  /// still compute, so ranks may evaluate different numbers of batches, or none.
  void finish_evaluation() override;
  /// Stage 3 (otherwise without effect): makes all weights whole on every rank until release_weights() or step(), for code that reads
  /// data_ptr(), for generation on one rank, or for export. Both are collective.
  void gather_weights() override;
  void release_weights() override;
  /// In stage 3 Error(kFailed) where an operator wrote to weights on some ranks only, outside gather_weights() and release_weights().
  void load_weights() override;

  const ExchangeStatistics& statistics() const override;
  MemoryForecast memory_forecast() const override;
  std::vector<FlatPiece> saved_pieces() override;
  std::vector<FlatPiece> loaded_pieces() override;
  void loaded() override;
  ShardOptimizer* optimizer() override;
  bool divides_optimizer() const override { return true; }

  /// The measured peak of what memory_forecast() predicts: slices, state, and whole units. Without gradients that wait in `.grad`.
  int64_t peak_bytes() const;
  /// Bytes of whole units (weights of stage 3, gradients in transit in 2 and 3): now, and the peak.
  int64_t unit_bytes() const;
  int64_t peak_unit_bytes() const;
  /// Stage 3: gathers so far, and those that were not prefetched.
  int64_t num_gathers() const;
  int64_t num_unforeseen_gathers() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cohort
