#pragma once
// Any torch::nn::Module in a loop of one's own, under data parallelism or ZeRO, and a torch::nn::Sequential or LayerGraph under pipelines
// and divided tensors as well: one meaning of the gradient everywhere, the mean over the global batch, if each rank's loss is the mean over
// its own samples. Example: session.h.

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

/// LibTorch's own options for an optimizer of ours, whose state can be divided.
using OptimizerOptions = std::variant<std::monostate, torch::optim::SGDOptions, torch::optim::AdamOptions, torch::optim::AdamWOptions>;

struct ParallelOptions {
  std::string layout;             ///< As --layout of `cohort train`; "": the session's, which is dp unless --layout says otherwise.
  OptimizerOptions optimizer;     ///< Given: step() without argument applies it. It must be given where the layout divides it or the
                                  ///< model (zero, pp, tp).
  std::string compress = "none";  ///< Of gradients, see parallel/compress/compressor.h. For dp.
  BufferPolicy buffers = BufferPolicy::kAverage;  ///< For dp without `optimizer`.
  bool sync_batch_norm = false;                   ///< torch::nn::BatchNorm takes its statistics over all ranks, see
                                 ///< parallel/batch_norm/convert_sync_batch_norm.h; it is an error where the model has none. With
                                 ///< session.backward(loss) where ranks have different numbers of samples.
  std::string name;    ///< In messages; DataParallelOptions::name.
  at::Tensor example;  ///< Under pp: an input of some samples, to measure the layers on. Of it the values do not matter.
};

/// Of a model's output for some samples, and what was given to forward_backward() for them: the mean over these samples.
using LossFunction = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;

struct StepSettings {
  double clip_norm = 0;  ///< Largest 2-norm of the gradient of the whole model; 0: as it is.
};

/// One per model and rank; module and session must outlive it. One thread. step() is collective, and backward() is: errors as
/// DataParallel's. Under tp the module's forward() is collective too, and gives the whole output on every rank.
class COHORT_API Parallel {
 public:
  /// Collective. All ranks get rank 0's parameters and buffers; backward() of a forward before it is an Error.
  Parallel(torch::nn::Module& module, Session& session, ParallelOptions options = {});
  ~Parallel();
  Parallel(const Parallel&) = delete;
  Parallel& operator=(const Parallel&) = delete;

  /// forward() of this rank's rows, loss and backward() in one call: what pipelines need, and every layout takes. Returns the loss over the
  /// whole batch, the same on all ranks. For a LayerGraph or a Sequential. Collective. Error(kBadInput) that names the layer or the loss
  /// which cannot take what it gets, and for a target that has not a row for each of the input.
  double forward_backward(const at::Tensor& input, const at::Tensor& target, const LossFunction& loss);
  /// The model's output for this rank's rows; under pp without gradients, for evaluation, on all ranks that share these rows. For a
  /// LayerGraph or a Sequential. Collective under pp and tp.
  at::Tensor forward(const at::Tensor& input);
  /// Who has what, for people: "layout tp=2: tp=2 divides 4 of 5 layers with 99 % of the weights".
  std::string describe() const;

  /// One step of the program's optimizer with the gradients that backward() left, the same on all ranks, and zero_grad(). Error(kBadInput)
  /// under ZeRO, and where `optimizer` was given to the constructor.
  StepOutcome step(torch::optim::Optimizer& optimizer, const StepSettings& settings = {});
  /// For optimizers that compute the loss again (LBFGS): `closure` zeroes the gradients, makes this rank's loss, calls backward() and
  /// returns the loss. The optimizer gets the mean over all ranks, so that it goes the same way on all.
  at::Tensor step(torch::optim::Optimizer& optimizer, const std::function<at::Tensor()>& closure);
  /// One step of the optimizer that was given to the constructor, and zero_grad().
  StepOutcome step(const StepSettings& settings = {});
  double learning_rate() const;
  /// Of the optimizer that was given to the constructor. The same on all ranks: what differs is an Error at the next step.
  void set_learning_rate(double rate);

  /// While the returned object lives, backward() only adds to the gradients of this rank: all but the last of several before one step().
  /// The loss of each of n is to be divided by n.
  [[nodiscard]] std::shared_ptr<void> accumulate();
  /// In place of forward and backward() on a rank that has no samples in a step.
  void no_samples();
  /// In the catch block around a step that this rank could not make: an exception ended its forward, or its backward(). The others'
  /// backward() or step() throws Error(kFailed), naming this rank; no rank has the step's gradients, and the next step works on all.
  void abandon_step();
  /// After parameters were registered, replaced, loaded or unfrozen. Collective; all ranks get rank 0's values. Layout dp.
  void adopt_model();
  /// All weights whole on every rank until release_weights() or step(): for evaluation on one rank, torch::save, writes to parameters under
  /// zero=3. Collective, both; else without effect.
  void gather_weights();
  void release_weights();
  /// After forwards without backward() under zero=3, before other exchanges. Collective; else without effect.
  void finish_evaluation();

  /// Writes weights, buffers, the optimizer's state and `step` to the folder FOLDER/step-..., from which load() reads under any layout and
  /// on any number of ranks. `optimizer`: the program's own, SGD, Adam or AdamW. Collective. Returns the path. Errors on all ranks.
  std::string save(const std::string& folder, int64_t step, torch::optim::Optimizer* optimizer = nullptr);
  /// The newest valid checkpoint of FOLDER; returns its step, or -1 where there is none.
  int64_t load(const std::string& folder, torch::optim::Optimizer* optimizer = nullptr);

  const ExchangeStatistics& statistics() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cohort
