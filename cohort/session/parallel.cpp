// The gradient of the mean over the global batch: a rank's loss is the mean over its own n of N samples, so its gradient has the weight
// n p / N in the mean over p replicas. A hook on each parameter multiplies its gradient by a weight other than 1, for every backward() with
// the samples of its loss. In a pipeline the loss of each micro-batch is multiplied.
//
// Between backward() and step() only DataParallel has whole gradients. Other engines have at most a part, which is hidden from the program
// (operator_watch.h), since it would measure or change that part.
#include "cohort/session/parallel.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/utils/clip_grad.h>

#include <cmath>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/models/graph/model_errors.h"
#include "cohort/session/parallel_state.h"

namespace cohort {

void Parallel::State::begin_backward(const torch::autograd::edge_list& roots) {
  update_hooks();
  if (in_pipeline) return;
  gradients.show();
  if (split) split->check_loss(roots);
}

void Parallel::State::end_backward() {
  if (in_pipeline) return;
  session.forget_batches();
  was_held = strategy ? holds : !data_parallel->is_sync();
  has_exchanged |= !was_held;
  hide_gradients();
  if (split) split->check_loss_again();
}

/// Exchanges the gradients of backwards in accumulate(), if all backwards of the step were in it.
void Parallel::State::begin_step(const char* call) {
  session.forget_batches();
  if (session.size() > 1 && was_held && has_exchanged)
    fail(ErrorCode::kBadInput, call,
         ": the last backward() before it was in accumulate(), after one that was not; all but the last of a step are in accumulate(), or "
         "all of them");
  if (session.size() > 1 && strategy && was_held) {
    strategy->set_sync(true);
    strategy->exchange_without_backward();
  }
  was_held = has_exchanged = false;
}

/// Error(kBadInput) for parameters or gradients that are not exchanged, with which each rank would train its own.
void Parallel::State::check_optimizer(const torch::optim::Optimizer& optimizer) {
  if (session.size() == 1) return;
  const int64_t num_exchanges = data_parallel->statistics().num_exchanges;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.requires_grad() || !parameter.grad().defined()) continue;
      if (!session.has_parameter(parameter))
        fail(ErrorCode::kBadInput, "step(optimizer): the optimizer has a parameter of shape ", parameter.sizes(),
             " that is in no module given to Parallel, so each rank would train its own; register it in the module, or give its module a "
             "Parallel too");
      const auto found = hooked.find(parameter.unsafeGetTensorImpl());
      if (found == hooked.end()) continue;  // It belongs to another Parallel.
      if (found->second == num_exchanges)
        fail(ErrorCode::kBadInput, "step(optimizer): a parameter of shape ", parameter.sizes(),
             " has a gradient that no backward() since its last step has exchanged (from autograd::grad()?), so each rank would apply its "
             "own; make a loss of it, (gradient * parameter).sum(), and call backward(), or, where it is the same on all ranks, "
             "optimizer.step()");
      found->second = num_exchanges;
    }
  }
}

/// Hides partial gradients, of which clip_grad_norm_() would compute a wrong norm. The program may change whole ones, which DataParallel
/// has exchanged.
void Parallel::State::hide_gradients() {
  if (!in_pipeline && (strategy || !data_parallel->is_sync())) gradients.hide();
}

/// Called before each backward(), to hook parameters that were registered or unfrozen since the last one.
void Parallel::State::update_hooks() {
  if (session.size() == 1 || is_pipeline()) return;
  session.check_samples_told("backward()");
  session.check_one_batch("backward()");
  set_buffer_share();
  if (!module_watch->changed()) return;
  hook_parameters();
  module_watch->remember();
  session.add_parameters(module);
}

void Parallel::State::explain_backward(const std::string& text) const {
  if (const std::string weight = changed_weights.named_in(text); !weight.empty())
    fail(ErrorCode::kBadInput, "backward(): ", weight,
         " is not what it was in forward: Parallel was made between them, and gave it rank 0's values; make Parallel before the loop");
}

/// Weights batch-norm statistics by samples, as gradients. `part`: this rank's part of its replica's samples.
void Parallel::State::set_buffer_share(double part) {
  const double share = part * session.loss_weight() / num_replicas();
  if (data_parallel) data_parallel->set_buffer_share(share);
  else strategy->set_buffer_share(share);
}

/// Weights gradients by this rank's samples, but not those that autograd::grad() returns.
void Parallel::State::hook_parameters() {
  if (session.size() == 1 || is_pipeline()) return;
  for (const NamedTensor& parameter : distinct_parameters(trained())) {
    const void* const address = parameter.tensor.unsafeGetTensorImpl();
    if (!parameter.tensor.requires_grad() || hooked.contains(address)) continue;
    hooked.emplace(address, 0);
    hooks.emplace_back(parameter.tensor, parameter.tensor.register_hook([this](const at::Tensor& gradient) -> at::Tensor {
      const double weight = session.loss_weight();
      if (weight == 1 || session.loss_is_weighted() || !backward_watch.is_accumulating()) return {};
      if (options.sync_batch_norm) refuse_uneven();
      at::NoGradGuard no_grad;
      return weight == 0 ? at::zeros_like(gradient) : gradient.mul(weight);
    }));
  }
}

/// Error(kBadInput) for a gradient without a hook, which was weighted by ranks and not by samples.
void Parallel::State::check_hooks() {
  if (session.loss_weight() == 1) return;
  for (const NamedTensor& parameter : distinct_parameters(module)) {
    const void* const address = parameter.tensor.unsafeGetTensorImpl();
    if (!parameter.tensor.grad().defined() || hooked.contains(address)) continue;
    fail(ErrorCode::kBadInput, "step(): parameter ", parameter.name,
         " was registered, replaced or unfrozen after Parallel was made, and ranks have different numbers of samples; call adopt_model() "
         "after such a change");
  }
}

/// Backward of batch norm adds the ranks' gradients inside the model, before hooks could weight them.
void Parallel::State::refuse_uneven() {
  fail(ErrorCode::kBadInput,
       "Parallel with sync_batch_norm: ranks have different numbers of samples, and gradients that go through the statistics of all ranks "
       "would count by ranks and not by samples; call session.backward(loss) in place of loss.backward()");
}

void Parallel::State::check_own(const char* call) const {
  if (strategy) return;
  fail(ErrorCode::kBadInput, call,
       ": no optimizer was given to Parallel; give {.optimizer = torch::optim::SGDOptions(0.1)}, or call step(optimizer)");
}

/// If all backwards since the last step were in accumulate(), their sum is exchanged now.
void Parallel::State::exchange_accumulated() {
  if (has_accumulated && data_parallel->statistics().num_exchanges == num_exchanges_before) data_parallel->exchange_without_backward();
  has_accumulated = false;
}

/// Checks that ranks have equal learning rates, by the sum that came with this step's exchange.
void Parallel::State::check_rates() {
  // Ranks with other parts of the model are not in that exchange.
  double sum = has_parts() ? announced_rate : strategy->control_sum(kRateSlot);
  if (has_parts()) {
    const at::Tensor rates = at::full({1}, sum, at::kDouble);
    session.group().all_reduce_sum(rates, "the learning rates in step()");
    sum = rates.const_data_ptr<double>()[0];
  }
  const double expected = announced_rate * session.size();
  if (session.size() > 1 && std::abs(sum - expected) > 1e-5 * std::abs(expected))
    fail(ErrorCode::kFailed, "ranks step with different learning rates: this one, rank ", session.rank(), ", with ", announced_rate,
         ", their mean is ", sum / session.size(), "; a schedule that looks at the loss must be given session.mean(loss)");
  strategy->set_control(kRateSlot, static_cast<float>(learning_rate));
  announced_rate = learning_rate;
}

Parallel::Parallel(torch::nn::Module& module, Session& session, ParallelOptions options)
    : state_(std::make_unique<State>(module, session, std::move(options))) {}
Parallel::~Parallel() = default;

StepOutcome Parallel::step(torch::optim::Optimizer& optimizer, const StepSettings& settings) {
  State& s = *state_;
  if (s.strategy)
    fail(ErrorCode::kBadInput, "step(optimizer): this model's optimizer is the one that was given to Parallel; call step()",
         s.layout.zero > 0
             ? concat(" (under zero=", s.layout.zero, " no rank has all gradients, so LibTorch's optimizer would not move it)")
             : "");
  s.gradients.show();
  s.begin_step("step(optimizer)");
  s.exchange_accumulated();
  s.check_optimizer(optimizer);
  s.check_hooks();
  StepOutcome outcome;
  if (settings.clip_norm > 0) outcome.gradient_norm = torch::nn::utils::clip_grad_norm_(s.module.parameters(), settings.clip_norm);
  optimizer.step();
  optimizer.zero_grad();
  s.num_exchanges_before = s.data_parallel->statistics().num_exchanges;
  s.data_parallel->count_step();
  return outcome;
}

at::Tensor Parallel::step(torch::optim::Optimizer& optimizer, const std::function<at::Tensor()>& closure) {
  State& s = *state_;
  s.gradients.show();
  if (s.strategy) fail(ErrorCode::kBadInput, "step(optimizer, closure) goes with layout dp and without an optimizer given to Parallel");
  at::Tensor loss = optimizer.step([&] { return s.session.mean(closure()); });
  optimizer.zero_grad();
  s.num_exchanges_before = s.data_parallel->statistics().num_exchanges;
  s.data_parallel->count_step();
  return loss;
}

StepOutcome Parallel::step(const StepSettings& settings) {
  State& s = *state_;
  s.check_own("step()");
  if (const std::string dropped = s.gradients.show(); !dropped.empty())
    fail(ErrorCode::kBadInput, "step(): the program took the gradient of ", dropped,
         " away after the last backward(); to drop a step call zero_grad() in place of step(), to freeze a parameter requires_grad_(false) "
         "before Parallel is made");
  if (!s.is_pipeline()) s.begin_step("step()");
  if (s.is_pipeline()) {
    if (s.num_passes == s.num_passes_before)
      fail(ErrorCode::kBadInput, "step(): there was no forward_backward() since the last one, so there is nothing to apply");
    s.num_passes_before = s.num_passes;
    s.strategy->exchange_without_backward();
  }
  s.strategy->finish_backward();
  s.check_rates();
  StepOptions step{.learning_rate = s.learning_rate, .clip_norm = settings.clip_norm};
  if (s.has_parts()) step.add_other_parts = s.split->place().add_other_parts();
  const StepOutcome outcome = s.strategy->step(step);
  if (s.has_parts()) s.split->check_whole_weights();
  s.strategy->zero_grad();
  if (!s.is_pipeline()) s.strategy->set_sync(true);
  s.hide_gradients();
  return outcome;
}

double Parallel::learning_rate() const {
  state_->check_own("learning_rate()");
  return state_->learning_rate;
}

void Parallel::set_learning_rate(double rate) {
  state_->check_own("set_learning_rate()");
  if (!(rate >= 0) || std::isinf(rate)) fail(ErrorCode::kBadInput, "set_learning_rate(", rate, "): a rate is a number from 0");
  state_->learning_rate = rate;
}

std::shared_ptr<void> Parallel::accumulate() {
  State& s = *state_;
  if (s.data_parallel) {
    s.has_accumulated = true;
    return std::make_shared<NoSync>(*s.data_parallel);
  }
  if (s.is_pipeline()) return std::make_shared<int>(0);  // step() exchanges the sum in any case.
  s.strategy->set_sync(false);
  s.holds = true;
  return {nullptr, [&s](void*) {
            s.strategy->set_sync(true);
            s.holds = false;
          }};
}

void Parallel::no_samples() {
  State& s = *state_;
  if (s.is_pipeline())
    fail(ErrorCode::kBadInput, "no_samples(): in a pipeline all ranks call forward_backward(), with no rows where there are none");
  s.exchange_no_samples();
  s.hide_gradients();
}

void Parallel::State::exchange_no_samples() {
  gradients.show();
  set_buffer_share();
  if (data_parallel) return data_parallel->exchange_without_backward();
  strategy->set_sync(true);
  strategy->exchange_without_backward();
}

void Parallel::abandon_step() {
  State& s = *state_;
  if (s.has_parts())
    fail(ErrorCode::kBadInput, "abandon_step(): under layout ", to_text(s.layout),
         " ranks wait for each other inside of forward and backward, so a step that one cannot make ends the job; use dp or zero");
  s.has_accumulated = s.was_held = s.has_exchanged = false;
  s.gradients.show();
  if (s.data_parallel) {
    s.data_parallel->abandon_step();
  } else {
    s.strategy->abandon_step();
    s.strategy->zero_grad();
  }
  s.hide_gradients();
}

void Parallel::adopt_model() {
  State& s = *state_;
  if (!s.data_parallel)
    fail(ErrorCode::kBadInput, "adopt_model() goes with layout dp and an optimizer of the program's own; under ", to_text(s.layout),
         " make a new Parallel after the change");
  s.data_parallel->adopt_model();
  s.hook_parameters();
}

void Parallel::gather_weights() {
  if (state_->strategy) state_->strategy->gather_weights();
}
void Parallel::release_weights() {
  if (state_->strategy) state_->strategy->release_weights();
}
void Parallel::finish_evaluation() {
  if (state_->strategy) state_->strategy->finish_evaluation();
}

double Parallel::forward_backward(const at::Tensor& input, const at::Tensor& target, const LossFunction& loss) {
  State& s = *state_;
  if (input.dim() == 0) fail(ErrorCode::kBadInput, "forward_backward(): a batch has rows, and this input is one number");
  check_target(input, target);
  try {
    return s.forward_backward(input, target, loss);
  } catch (const c10::Error& error) {
    explain(error, concat("forward_backward() of an input of ", describe_tensor(input), " and a target of ", describe_tensor(target)));
  }
}

double Parallel::State::forward_backward(const at::Tensor& input, const at::Tensor& target, const LossFunction& loss) {
  const StepContext context{session.seed(), num_passes++, session.first_sample()};
  if (is_pipeline()) {
    session.check_samples_told("forward_backward()");
    session.check_one_batch("forward_backward()");
    session.forget_batches();
    split->check_rows(input, target);
    const LossFunction alone = [&](const at::Tensor& output, const at::Tensor& wanted) {
      session.set_in_pipeline_loss(true);
      const auto out_of_it = c10::make_scope_exit([this] { session.set_in_pipeline_loss(false); });
      return loss(output, wanted);
    };
    gradients.show();
    in_pipeline = true;
    const auto out_of_it = c10::make_scope_exit([this] {
      in_pipeline = false;
      hide_gradients();
    });
    const double mean = split->run_pipeline({input, target, alone, session.loss_weight(), context});
    set_buffer_share(split->own_share());
    return mean;
  }
  double mine = 0;
  if (input.size(0) == 0) {
    exchange_no_samples();
  } else {
    const StepContextScope scope(context);
    const at::Tensor value = checked_loss(loss, forward(input), target);
    session.backward(value);
    mine = value.item<double>();
  }
  return session.mean(mine);
}

at::Tensor Parallel::forward(const at::Tensor& input) { return state_->forward(input); }

at::Tensor Parallel::State::forward(const at::Tensor& input) {
  if (split) return split->forward(input);
  if (auto* const graph = dynamic_cast<LayerGraph*>(&module)) return graph->forward(input);
  if (auto* const sequential = dynamic_cast<torch::nn::SequentialImpl*>(&module)) return forward_by_layers(*sequential, input);
  fail(ErrorCode::kBadInput, "forward(): ", module.name(),
       " is neither a cohort::LayerGraph nor a torch::nn::Sequential; call its own forward(), then backward()");
}

std::string Parallel::describe() const {
  std::string text = "layout " + to_text(state_->layout);
  if (state_->split && !state_->split->description().empty()) text += ": " + state_->split->description();
  return text;
}

const ExchangeStatistics& Parallel::statistics() const {
  return state_->data_parallel ? state_->data_parallel->statistics() : state_->strategy->statistics();
}

}  // namespace cohort
