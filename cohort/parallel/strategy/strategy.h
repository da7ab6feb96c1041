#pragma once
// How weights, gradients and optimizer of one model span the ranks of the data axis. Interface for the training loop:
//
//   strategy->zero_grad();
//   { forward; strategy->set_sync(last micro-step); loss.backward(); }   // the exchange overlaps backward
//   strategy->finish_backward();                                         // control numbers are there
//   strategy->step({.learning_rate = lr, .clip_norm = c});               // gradients are averaged, clipped, applied
//
// Implementations: replicated.h (whole weights and optimizer in every rank), shared_data_parallel.h (shared weights and optimizer on a
// host), zero_data_parallel.h (ZeRO 1-3), local_steps.h (weights are exchanged every H steps, gradients never).

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/parallel/optimizer/shard_optimizer.h"

namespace cohort {

struct ExchangeStatistics;  // data_parallel.h

struct StepOptions {
  double learning_rate = 0;
  double clip_norm = 0;       ///< Largest global 2-norm of the gradient; 0: no clipping.
  bool check_finite = false;  ///< Skip the update, on all ranks, where any gradient of any rank is infinite or NaN.
  /// Where other ranks train other parts of the model: maps the squared norm of this part to that of the whole model. Collective over all
  /// of them; the same on all ranks of this strategy.
  std::function<double(double)> add_other_parts;
  bool exchange = true;  ///< For local steps: whether an exchange follows this update. The same on all ranks.
};

struct StepOutcome {
  double gradient_norm = 0;   ///< Global, before clipping; 0 unless clip_norm was given.
  bool skipped = false;       ///< check_finite found a non-finite gradient.
  double update_seconds = 0;  ///< Time in the optimizer, including sums computed on the way.
};

/// Decides from the squared norm over all ranks of a strategy's gradients, which are still to be multiplied by `*factor`, whether to skip
/// the update, and computes the norm of the whole model. Multiplies `*factor` for clipping. The same on every rank. (In replicated.cpp.)
COHORT_API StepOutcome judge_gradient(double norm_squared, const StepOptions& options, double* factor);

/// Predicted bytes for one rank (of shared memory: its part).
struct MemoryForecast {
  int64_t weight_bytes = 0, gradient_bytes = 0, optimizer_bytes = 0;
};

/// One per model and rank; one thread. The gradient that is applied is the sum over ranks of what backward() left: losses are divided by
/// the number of samples of all ranks beforehand (GradientMean::kSum). All calls but the setters are collective. LocalSteps alone applies
/// what this rank's backward() left, so there losses are divided by its own samples.
class COHORT_API Strategy {
 public:
  virtual ~Strategy() = default;

  virtual void zero_grad() = 0;
  /// Drops the gradients of a step on purpose, on all ranks. zero_grad() drops them too, but is soon taken for a mistake where step() was
  /// never called.
  virtual void skip_step() { zero_grad(); }
  /// Multiplies every gradient first: 1 / loss scale. Applies from the next backward() on, until set again.
  virtual void set_gradient_factor(double factor) { gradient_factor_ = factor; }
  /// While false, backward() only accumulates.
  virtual void set_sync(bool on) = 0;
  /// From now on every backward() only accumulates in `.grad`, and exchange_without_backward() exchanges what is there: for pipelines,
  /// whose backwards are many. Gradients are then whole in every ZeRO stage.
  virtual void hold_gradients() { set_sync(false); }
  /// Parameters counted in the gradient norm on another rank (replicated weights in tensor parallelism).
  void set_counted_elsewhere(std::set<std::string> names) { counted_elsewhere_ = std::move(names); }
  /// Share of this rank in the average of buffers (batch-norm statistics); shares of all ranks add up to 1.
  virtual void set_buffer_share(double share) = 0;
  /// Samples of this rank and of all ranks in the step of the next backward().
  virtual void set_samples(int64_t mine, int64_t all) { set_buffer_share(static_cast<double>(mine) / static_cast<double>(all)); }
  /// Numbers exchanged with the gradients; their sums are available after finish_backward(). slot < DataParallel::kNumControls.
  virtual void set_control(int slot, float value) = 0;
  virtual float control_sum(int slot) const = 0;
  /// Takes part in a step without a backward, in place of the last backward().
  virtual void exchange_without_backward() = 0;
  virtual void finish_backward() = 0;
  /// Replaces the rest of a step that this rank cannot make because its forward or backward threw. finish_backward() (or backward()) of the
  /// others throws Error(kFailed), naming this rank; no rank keeps gradients of the step, and the next step works on all. Call it in the
  /// catch block around every step, on all ranks or none: without effect where the step has been dropped already. After a backward() that
  /// failed behind its first gradient the next zero_grad() does the same. Buffers keep what forward made of them.
  virtual void abandon_step() = 0;
  virtual StepOutcome step(const StepOptions& options) = 0;

  /// Call after forwards without backward, before other uses of the group. Ranks may have made different numbers of them.
  virtual void finish_evaluation() {}
  /// Makes all weights whole on every rank until release_weights(), so that one rank may compute alone. Collective.
  virtual void gather_weights() {}
  virtual void release_weights() {}
  /// Distributes the present parameters and buffers of rank 0, which may have called torch::load() or written to them. The optimizer's
  /// state stays. Collective, outside forward and backward.
  virtual void load_weights() = 0;
  /// Detaches the module from the strategy, in memory of its own where it was shared. Not collective.
  virtual void part_from_module() {}
  virtual const ExchangeStatistics& statistics() const = 0;
  virtual MemoryForecast memory_forecast() const = 0;
  /// Pieces of parameters ("model/NAME") and optimizer saved by this rank: over all ranks each element exactly once. Without buffers.
  virtual std::vector<FlatPiece> saved_pieces() = 0;
  /// Pieces that this rank must load; they alias the memory in use. Then call loaded(), collective.
  virtual std::vector<FlatPiece> loaded_pieces() = 0;
  virtual void loaded() = 0;
  /// The optimizer of this rank's weights, for pruning; null where the strategy has none of its own.
  virtual ShardOptimizer* optimizer() { return nullptr; }
  /// Whether each element of a parameter is in one rank's optimizer only, instead of in every rank's.
  virtual bool divides_optimizer() const { return false; }

 protected:
  bool counts(const std::string& parameter) const { return !counted_elsewhere_.contains(parameter); }
  double gradient_factor() const { return gradient_factor_; }

 private:
  double gradient_factor_ = 1;
  std::set<std::string> counted_elsewhere_;
};

}  // namespace cohort
