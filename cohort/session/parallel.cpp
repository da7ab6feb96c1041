// Which engine does the work:
//   dp, the program's own optimizer     DataParallel (mean over ranks) in front of it: weights and state whole on every rank
//   dp, the optimizer given here        one copy of the weights a host where ranks share memory, else replicated
//   zero=1..3                           ZeroDataParallel
//   pp, tp, recompute                   one of the last two, over the ranks that have the same part of the model (split_model.h)
//
// The mean over the global batch: a rank's loss is the mean over its own n of N samples, so its gradient counts n p / N in the mean over p
// replicas. A hook in front of each parameter's `.grad` multiplies by that where it is not 1, for every backward() with the samples that it
// had. In a pipeline the loss of each micro-batch is multiplied.
#include "cohort/session/parallel.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/utils/clip_grad.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "cohort/base/error.h"
#include "cohort/base/layout.h"
#include "cohort/base/option_rules.h"
#include "cohort/models/model_errors.h"
#include "cohort/parallel/convert_sync_batch_norm.h"
#include "cohort/parallel/make_strategy.h"
#include "cohort/session/optimizer_pieces.h"
#include "cohort/session/parallel_state.h"

namespace cohort {
namespace {

constexpr int kRateSlot = DataParallel::kNumControls - 1;

Layout layout_of(const ParallelOptions& options, const Session& session) {
  const std::string& text = options.layout.empty() ? session.layout() : options.layout;
  Layout layout;
  if (text.empty() || text == "dp") {
    layout.dp = session.size();
  } else {
    layout = parse_layout(text, session.size());
  }
  if (options.optimizer.index() == 0 && (layout.zero > 0 || layout.is_model_parallel() || layout.recompute != "none"))
    fail(ErrorCode::kBadInput, "layout ", text,
         layout.zero > 0 ? " divides the optimizer's state" : " leaves each rank a part of the model",
         ", which LibTorch's optimizers cannot follow: give Parallel its options, "
         "{.optimizer = torch::optim::AdamWOptions(1e-3)} (or SGDOptions, AdamOptions), and call step() without an optimizer; all others "
         "(RMSprop, Adagrad, and LBFGS, whose closure computes the loss several times a step) go with layout dp: step(optimizer), "
         "step(optimizer, closure)");
  if (options.compress != "none") layout.compress = options.compress;
  if (layout.zero > 0 && layout.compress != "none")
    fail(ErrorCode::kBadInput, "compress=", layout.compress, " goes with layout dp, not with zero=", layout.zero);
  if (layout.is_model_parallel() && options.sync_batch_norm)
    fail(ErrorCode::kBadInput, "layout ", to_text(layout), ": sync_batch_norm goes with dp and zero; use a norm over groups or layers");
  const Config defaults;
  check_options({.config = defaults, .layout = layout, .num_ranks = session.size()});
  return layout;
}

}  // namespace

Parallel::State::State(torch::nn::Module& module_, const Session& session_, ParallelOptions options_)
    : module(module_),
      session(session_),
      options(std::move(options_)),
      layout(layout_of(options, session)),
      changed_weights(session.size() > 1 ? ChangedWeights(module) : ChangedWeights()) {
  const std::vector<at::Tensor> weights = module.parameters();
  if (options.optimizer.index() != 0 && std::none_of(weights.begin(), weights.end(), [](const auto& one) { return one.requires_grad(); }))
    fail(ErrorCode::kBadInput, "Parallel: ", module.name(), " has no parameter that requires a gradient, so there is nothing to train");
  if (options.sync_batch_norm) share_batch_norm();
  if (options.optimizer.index() == 0) {
    data_parallel = std::make_unique<DataParallel>(
        module, session.group(),
        DataParallelOptions{.buffers = options.buffers, .name = options.name, .compress = layout.compress, .seed = session.seed()});
  } else {
    make_strategy();
  }
  session.divide_by(split ? split->share_index() : session.rank(), num_replicas(), split ? split->random_stream() : session.rank());
  module_watch.emplace(trained());
  changed_weights.look_again();
  hook_parameters();
}

void Parallel::State::share_batch_norm() {
  Group group = session.group();
  if (group.size() > 1) {
    std::vector<int> all(session.size());
    std::iota(all.begin(), all.end(), 0);
    group = group.split(all, "batch norm");  // Beside the gradients' own order.
  }
  if (convert_sync_batch_norm(module, group) == 0)
    fail(ErrorCode::kBadInput, "Parallel with sync_batch_norm: ", module.name(),
         " has no torch::nn::BatchNorm1d, 2d or 3d, and of a norm of the program's own Cohort knows nothing; leave the option out");
}

void Parallel::State::make_strategy() {
  if (options.buffers != BufferPolicy::kAverage)
    fail(ErrorCode::kBadInput, "Parallel: buffers = ", name_of(options.buffers),
         " goes with an optimizer of the program's own under layout dp");
  const UpdateRule rule = update_rule_of(options.optimizer, &learning_rate);
  if (layout.is_model_parallel() || layout.recompute != "none")
    split = std::make_unique<SplitModel>(module, session.group(), layout, rule, options.example);
  strategy = cohort::make_strategy(trained(), split ? split->data() : session.group(),
                                   {.zero = layout.zero, .rule = rule, .compress = layout.compress, .seed = session.seed()});
  if (has_parts()) strategy->set_counted_elsewhere(split->parallel()->counted_elsewhere(split->part()));
  if (is_pipeline()) strategy->hold_gradients();
  strategy->set_gradient_factor(1.0 / num_replicas());
  strategy->set_control(kRateSlot, static_cast<float>(learning_rate));
  announced_rate = learning_rate;
}

/// Before each backward(): parameters that were registered or unfrozen since count by the samples, too.
void Parallel::State::see_module() {
  if (session.size() == 1 || is_pipeline()) return;
  session.check_samples_told("backward()");
  set_buffer_share();
  if (!module_watch->changed()) return;
  hook_parameters();
  module_watch->remember();
}

void Parallel::State::explain_backward(const std::string& text) const {
  if (const std::string weight = changed_weights.named_in(text); !weight.empty())
    fail(ErrorCode::kBadInput, "backward(): ", weight,
         " is not what it was in forward: Parallel was made between them, and gave it rank 0's values; make Parallel before the loop");
}

/// Batch-norm statistics count by the samples, as gradients do. `part`: of this replica's samples.
void Parallel::State::set_buffer_share(double part) {
  const double share = part * session.weight() / num_replicas();
  if (data_parallel) data_parallel->set_buffer_share(share);
  else strategy->set_buffer_share(share);
}

/// Gradients count by this rank's samples, where they go to `.grad`: what autograd::grad() returns is the program's own.
void Parallel::State::hook_parameters() {
  if (session.size() == 1 || is_pipeline()) return;
  for (const NamedTensor& parameter : distinct_parameters(trained())) {
    const void* const address = parameter.tensor.unsafeGetTensorImpl();
    if (!parameter.tensor.requires_grad() || std::find(hooked.begin(), hooked.end(), address) != hooked.end()) continue;
    hooked.push_back(address);
    hooks.emplace_back(parameter.tensor, parameter.tensor.register_hook([this](const at::Tensor& gradient) -> at::Tensor {
      const double weight = session.weight();
      if (weight == 1 || session.loss_is_weighted() || !backward_watch.is_accumulating()) return {};
      if (options.sync_batch_norm) refuse_uneven();
      at::NoGradGuard no_grad;
      return weight == 0 ? at::zeros_like(gradient) : gradient.mul(weight);
    }));
  }
}

/// A gradient that came without a hook counted by ranks and not by samples. Not looked at where that is the same.
void Parallel::State::check_hooks() {
  if (session.weight() == 1) return;
  for (const NamedTensor& parameter : distinct_parameters(module)) {
    const void* const address = parameter.tensor.unsafeGetTensorImpl();
    if (!parameter.tensor.grad().defined() || std::find(hooked.begin(), hooked.end(), address) != hooked.end()) continue;
    fail(ErrorCode::kBadInput, "step(): parameter ", parameter.name,
         " was registered, replaced or unfrozen after Parallel was made, and ranks have different numbers of samples; call adopt_model() "
         "after such a change");
  }
}

/// Its backward adds up the ranks' gradients inside the model, before any of them is weighted.
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

/// All backwards since the last step were in accumulate(): their sum is exchanged now.
void Parallel::State::exchange_what_waits() {
  if (has_accumulated && data_parallel->statistics().num_exchanges == num_exchanges_before) data_parallel->exchange_without_backward();
  has_accumulated = false;
}

/// The rates that the ranks last announced, which came with this step's exchange.
void Parallel::State::check_rates() {
  // Ranks with other parts do not exchange with this one.
  double sum = has_parts() ? announced_rate : strategy->control_sum(kRateSlot);
  if (has_parts()) {
    const at::Tensor rates = at::full({1}, sum, at::kDouble);
    session.group().all_reduce_sum(rates, "the learning rates in step()")->wait();
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
  s.exchange_what_waits();
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
  if (s.is_pipeline()) {
    if (s.num_passes == s.num_passes_before)
      fail(ErrorCode::kBadInput, "step(): there was no forward_backward() since the last one, so there is nothing to apply");
    s.num_passes_before = s.num_passes;
    s.strategy->exchange_without_backward();
  }
  s.strategy->finish_backward();
  s.check_rates();
  StepOptions step{.learning_rate = s.learning_rate, .clip_norm = settings.clip_norm};
  if (s.has_parts()) step.add_other_parts = [&s](double norm) { return s.split->parallel()->add_other_parts(norm); };
  const StepOutcome outcome = s.strategy->step(step);
  if (s.has_parts()) s.split->check_whole_weights();
  s.strategy->zero_grad();
  if (!s.is_pipeline()) s.strategy->set_sync(true);
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
  if (s.is_pipeline()) return std::make_shared<int>(0);  // step() exchanges the sum of all that came before it.
  s.strategy->set_sync(false);
  return {nullptr, [strategy = s.strategy.get()](void*) { strategy->set_sync(true); }};
}

void Parallel::no_samples() {
  State& s = *state_;
  if (s.is_pipeline())
    fail(ErrorCode::kBadInput, "no_samples(): in a pipeline all ranks call forward_backward(), with no rows where there are none");
  s.exchange_no_samples();
}

void Parallel::State::exchange_no_samples() {
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
  s.has_accumulated = false;
  if (s.data_parallel) return s.data_parallel->abandon_step();
  s.strategy->abandon_step();
  s.strategy->zero_grad();
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
    explain(error, concat("forward_backward() of an input of ", describe_form(input), " and a target of ", describe_form(target)));
  }
}

double Parallel::State::forward_backward(const at::Tensor& input, const at::Tensor& target, const LossFunction& loss) {
  const StepContext context{session.seed(), num_passes++, session.first_sample()};
  if (is_pipeline()) {
    session.check_samples_told("forward_backward()");
    split->check_rows(input, target);
    const LossFunction alone = [&](const at::Tensor& output, const at::Tensor& wanted) {
      struct Scope {
        Session& session;
        ~Scope() { session.set_in_pipeline_loss(false); }
      } scope{session};
      session.set_in_pipeline_loss(true);
      return loss(output, wanted);
    };
    const double mean = split->run_pipeline({input, target, alone, session.weight(), context});
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
       " is no cohort::LayerGraph and no torch::nn::Sequential; call its own forward(), then backward()");
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
