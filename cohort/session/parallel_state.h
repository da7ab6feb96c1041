#pragma once
// What stands behind Parallel: one of three engines, or of the parts of a cut model one of them; and the state of LibTorch's own optimizers
// as checkpoints have it. Private to parallel*.cpp.

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

// The state of LibTorch's own optimizers under the names that checkpoints have, so that a training goes on with another optimizer object,
// layout or number of ranks.

/// The rule that LibTorch's options mean, and the learning rate in them. Error(kBadInput) for what ours does not do (amsgrad, dampening).
UpdateRule update_rule_of(const OptimizerOptions& options, double* learning_rate);

/// "optimizer/PARAMETER/SLOT" of SGD with momentum, Adam and AdamW, as ShardOptimizer names them: whole tensors that alias the optimizer's
/// own. State that it has not made yet is made, with zeros. Error(kBadInput) for another optimizer, and for a parameter that is not among
/// `parameters`.
std::vector<FlatPiece> optimizer_pieces(torch::optim::Optimizer& optimizer, const std::vector<NamedTensor>& parameters);
/// After values were read into them: LibTorch keeps the number of steps apart.
void optimizer_pieces_loaded(torch::optim::Optimizer& optimizer, const std::vector<FlatPiece>& pieces,
                             const std::vector<NamedTensor>& parameters);

/// Of the control numbers that travel with the gradients: the learning rate.
constexpr int kRateSlot = DataParallel::kNumControls - 1;

struct Parallel::State {
  torch::nn::Module& module;
  Session session;
  ParallelOptions options;
  Layout layout;
  double learning_rate = 0, announced_rate = 0;
  std::unique_ptr<SplitModel> split;            ///< Where ranks have parts of the model, or it recomputes: the strategy trains those.
  std::unique_ptr<DataParallel> data_parallel;  ///< Or
  std::unique_ptr<Strategy> strategy;
  std::vector<std::pair<at::Tensor, unsigned>> hooks;
  std::unordered_map<const void*, int64_t> hooked;  ///< How many exchanges there had been at each parameter's last step(optimizer).
  std::optional<ModuleWatch> module_watch;
  ChangedWeights changed_weights;
  HiddenGradients gradients;
  BackwardWatch backward_watch{{.at_begin = [this](const auto& roots) { begin_backward(roots); },
                                .at_failure = [this](const std::string& text) { explain_backward(text); },
                                .at_return = [this] { end_backward(); }}};
  int64_t num_exchanges_before = 0;
  int64_t num_passes = 0, num_passes_before = 0;  ///< Calls of forward_backward(), ever and until the last step.
  bool has_accumulated = false, in_pipeline = false;
  bool holds = false;          ///< accumulate() of a strategy lives.
  bool was_held = false;       ///< The last backward() was in accumulate(),
  bool has_exchanged = false;  ///< and one of this step was not.

  State(torch::nn::Module& module, const Session& session, ParallelOptions options);
  ~State() {
    for (auto& [tensor, position] : hooks) tensor.remove_hook(position);
    if (strategy) strategy->part_from_module();
  }
  /// What is trained here.
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
  void see_module();
  void hide_gradients();
  void end_backward();
  void begin_step(const char* call);
  void check_optimizer(const torch::optim::Optimizer& optimizer);
  void explain_backward(const std::string& text) const;
  void set_buffer_share(double part = 1);
  void check_hooks();
  [[noreturn]] static void refuse_uneven();
  void check_own(const char* call) const;
  void exchange_what_waits();
  void check_rates();
  std::vector<FlatPiece> pieces(bool saving, torch::optim::Optimizer* optimizer);
};

}  // namespace cohort
