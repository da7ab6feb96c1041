#pragma once
// Parallel training of any torch::nn::Module in the program's own loop: data parallelism and ZeRO, and for a torch::nn::Sequential or
// LayerGraph also pipelines and tensor parallelism. If each rank's loss is the mean over its own samples, the gradient is the mean over the
// global batch under every layout. Example: session.h.

#include <torch/nn/module.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <memory>
#include <string>
#include <variant>

#include "cohort/base/export.h"
#include "cohort/parallel/strategy/data_parallel.h"
#include "cohort/parallel/strategy/strategy.h"
#include "cohort/session/session.h"

namespace cohort {

/// LibTorch's options for Cohort's optimizers, whose state can be divided.
using OptimizerOptions = std::variant<std::monostate, torch::optim::SGDOptions, torch::optim::AdamOptions, torch::optim::AdamWOptions>;

struct ParallelOptions {
  std::string layout;                             ///< Syntax of --layout; "": the session's layout, by default dp.
  OptimizerOptions optimizer;                     ///< Applied by step() without argument; required for zero, pp and tp.
  std::string compress = "none";                  ///< Compression of gradients (parallel/compress/compressor.h). For dp.
  BufferPolicy buffers = BufferPolicy::kAverage;  ///< For dp without `optimizer`.
  /// torch::nn::BatchNorm takes its statistics over all ranks (parallel/batch_norm/convert_sync_batch_norm.h); an error if the model has
  /// none. Needs session.backward(loss) if ranks have different numbers of samples.
  bool sync_batch_norm = false;
  std::string name;    ///< For messages; DataParallelOptions::name.
  at::Tensor example;  ///< Under pp: an input of some samples, with any values, to measure the layers on.
};

/// The mean loss over some samples, from the model's output and the rows of forward_backward()'s target for them.
using LossFunction = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;

struct StepSettings {
  double clip_norm = 0;  ///< Largest 2-norm of the gradient of the whole model; 0: no clipping.
};

/// One per model and rank; module and session must outlive it. One thread. step() and backward() are collective, with errors as
/// DataParallel. Under tp the module's forward() is also collective, and returns the whole output on every rank.
class COHORT_API Parallel {
 public:
  /// Collective. Broadcasts rank 0's parameters and buffers; backward() of an earlier forward is an Error.
  Parallel(torch::nn::Module& module, Session& session, ParallelOptions options = {});
  ~Parallel();
  Parallel(const Parallel&) = delete;
  Parallel& operator=(const Parallel&) = delete;

  /// forward() of this rank's rows, loss and backward() in one call, as pipelines need; works under every layout. Returns the loss over the
  /// whole batch, the same on all ranks. For a LayerGraph or a Sequential. Collective. Error(kBadInput) that names a layer or loss that
  /// fails, and for a target with another number of rows than the input.
  double forward_backward(const at::Tensor& input, const at::Tensor& target, const LossFunction& loss);
  /// The model's output for this rank's rows; under pp without gradients, for evaluation. For a LayerGraph or a Sequential. Collective
  /// under pp and tp.
  at::Tensor forward(const at::Tensor& input);
  /// For people: "layout tp=2: tp=2 divides 4 of 5 layers with 99 % of the weights".
  std::string describe() const;

  /// Steps the program's optimizer with the exchanged gradients, then zero_grad(). Error(kBadInput) if `optimizer` was given to the
  /// constructor.
  StepOutcome step(torch::optim::Optimizer& optimizer, const StepSettings& settings = {});
  /// For optimizers that compute the loss again (LBFGS): `closure` zeroes the gradients, computes this rank's loss, calls backward() and
  /// returns the loss. The optimizer gets the mean over all ranks, so that all of them decide alike.
  at::Tensor step(torch::optim::Optimizer& optimizer, const std::function<at::Tensor()>& closure);
  /// Steps the optimizer that was given to the constructor, then zero_grad().
  StepOutcome step(const StepSettings& settings = {});
  double learning_rate() const;
  /// For the optimizer of the constructor. Must be the same on all ranks; a difference is an Error at the next step.
  void set_learning_rate(double rate);

  /// While the returned object lives, backward() only adds to the gradients of this rank. Use it for all but the last of n backwards of a
  /// step, each of a loss divided by n.
  [[nodiscard]] std::shared_ptr<void> accumulate();
  /// Replaces forward and backward() on a rank without samples in a step.
  void no_samples();
  /// Called when an exception ended this rank's forward or backward(). The other ranks' backward() or step() throws Error(kFailed), which
  /// names this rank; no rank has the step's gradients, and the next step works on all.
  void abandon_step();
  /// Called after parameters were registered, replaced, loaded or unfrozen. Collective; broadcasts rank 0's values. Layout dp.
  void adopt_model();
  /// Under zero=3 makes all weights whole on every rank until release_weights() or step(), for evaluation on one rank, torch::save, or
  /// writes to parameters; else no effect. Both are collective.
  void gather_weights();
  void release_weights();
  /// Called under zero=3 after forwards without backward(), before other exchanges; else no effect. Collective.
  void finish_evaluation();

  /// Writes weights, buffers, optimizer state and `step` to FOLDER/step-..., which load() reads under any layout and number of ranks.
  /// `optimizer`: the program's own SGD, Adam or AdamW. Collective. Returns the path. Errors on all ranks.
  std::string save(const std::string& folder, int64_t step, torch::optim::Optimizer* optimizer = nullptr);
  /// Loads the newest valid checkpoint of FOLDER; returns its step, or -1 if there is none. Collective.
  int64_t load(const std::string& folder, torch::optim::Optimizer* optimizer = nullptr);

  const ExchangeStatistics& statistics() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cohort
