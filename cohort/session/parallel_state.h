#pragma once
// The implementation of Parallel, and LibTorch's optimizer states as pieces of checkpoints. Private to parallel*.cpp.

#include <torch/optim/optimizer.h>

#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cohort/job/layout.h"
#include "cohort/parallel/common/flat_piece.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/parallel/optimizer/update.h"
#include "cohort/parallel/strategy/data_parallel.h"
#include "cohort/parallel/watch/backward_watch.h"
#include "cohort/parallel/watch/operator_watch.h"
#include "cohort/parallel/watch/weight_watch.h"
#include "cohort/session/explain.h"
#include "cohort/session/parallel.h"
#include "cohort/session/split_model.h"

namespace cohort {

/// The update rule and learning rate of LibTorch's options. Error(kBadInput) for unsupported ones (amsgrad, dampening).
UpdateRule update_rule_of(const OptimizerOptions& options, double* learning_rate);

/// The state of SGD with momentum, Adam and AdamW as pieces "optimizer/PARAMETER/SLOT" that alias its tensors, named as by ShardOptimizer,
/// so that another optimizer, layout or number of ranks can load it. Missing state is made, with zeros. Error(kBadInput) for another
/// optimizer, and for a parameter that is not in `parameters`.
std::vector<FlatPiece> optimizer_pieces(torch::optim::Optimizer& optimizer, const std::vector<NamedTensor>& parameters);
/// Called after pieces were read, since LibTorch keeps the number of steps apart.
void optimizer_pieces_loaded(torch::optim::Optimizer& optimizer, const std::vector<FlatPiece>& pieces,
                             const std::vector<NamedTensor>& parameters);

/// The control number for the learning rate, which travels with the gradients.
constexpr int kRateSlot = DataParallel::kNumControls - 1;

struct Parallel::State {
  torch::nn::Module& module;
  Session session;
  ParallelOptions options;
  Layout layout;
  double learning_rate = 0, announced_rate = 0;
  std::unique_ptr<SplitModel> split;            ///< If ranks have parts of the model, or it recomputes.
  std::unique_ptr<DataParallel> data_parallel;  ///< Null if there is a strategy.
  std::unique_ptr<Strategy> strategy;
  std::vector<std::pair<at::Tensor, unsigned>> hooks;
  std::unordered_map<const void*, int64_t> hooked;  ///< By parameter: the number of exchanges at its last step(optimizer).
  std::optional<ModuleWatch> module_watch;
  ChangedWeights changed_weights;
  HiddenGradients gradients;
  BackwardWatch backward_watch{{.at_begin = [this](const auto& roots) { begin_backward(roots); },
                                .at_failure = [this](const std::string& text) { explain_backward(text); },
                                .at_return = [this] { end_backward(); }}};
  int64_t num_exchanges_before = 0;
  int64_t num_passes = 0, num_passes_before = 0;  ///< Calls of forward_backward(), in total and before the last step.
  bool has_accumulated = false, in_pipeline = false;
  bool holds = false;          ///< The object of accumulate() lives.
  bool was_held = false;       ///< The last backward() was in accumulate(),
  bool has_exchanged = false;  ///< and an earlier one of this step was not.

  State(torch::nn::Module& module, const Session& session, ParallelOptions options);
  ~State() {
    for (auto& [tensor, position] : hooks) tensor.remove_hook(position);
    if (strategy) strategy->part_from_module();
  }
  /// The module or its part that this rank trains.
  torch::nn::Module& trained() { return split ? split->part() : module; }
  bool is_pipeline() const { return split && split->is_pipeline(); }
  bool has_parts() const { return split && !split->place().is_whole(); }
  int num_replicas() const { return split ? split->num_shares() : session.size(); }
  void share_batch_norm();
  void make_strategy();
  at::Tensor forward(const at::Tensor& input);
  double forward_backward(const at::Tensor& input, const at::Tensor& target, const LossFunction& loss);
  void exchange_no_samples();
  void hook_parameters();
  void begin_backward(const torch::autograd::edge_list& roots);
  void update_hooks();
  void hide_gradients();
  void end_backward();
  void begin_step(const char* call);
  void check_optimizer(const torch::optim::Optimizer& optimizer);
  void explain_backward(const std::string& text) const;
  void set_buffer_share(double part = 1);
  void check_hooks();
  [[noreturn]] static void refuse_uneven();
  void check_own(const char* call) const;
  void exchange_accumulated();
  void check_rates();
  std::vector<FlatPiece> pieces(bool saving, torch::optim::Optimizer* optimizer);
};

}  // namespace cohort
