// Which engine does the work:
//   dp, the program's own optimizer     DataParallel (mean over ranks) in front of it: weights and state whole on every rank
//   dp, the optimizer given here        one copy of the weights a host where ranks share memory, else replicated
//   zero=1..3                           ZeroDataParallel
//
// The mean over the global batch: a rank's loss is the mean over its own n of N samples, so its gradient counts n p / N in the mean over p
// ranks. A hook in front of each parameter's `.grad` multiplies by that where it is not 1, for every backward() with the samples that it
// had.
#include "cohort/session/parallel.h"

#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/utils/clip_grad.h>
#include <unistd.h>

#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "cohort/base/error.h"
#include "cohort/base/json.h"
#include "cohort/base/layout.h"
#include "cohort/base/log.h"
#include "cohort/checkpoint/checkpoint.h"
#include "cohort/comm/together.h"
#include "cohort/parallel/backward_watch.h"
#include "cohort/parallel/convert_sync_batch_norm.h"
#include "cohort/parallel/data_parallel.h"
#include "cohort/parallel/make_strategy.h"
#include "cohort/parallel/module_watch.h"
#include "cohort/parallel/tensor_alias.h"
#include "cohort/session/optimizer_pieces.h"
#include "cohort/train/parameter_places.h"

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
  if (layout.is_model_parallel() || layout.sync != "step" || layout.recompute != "none" || !layout.stages.empty())
    fail(ErrorCode::kBadInput, "layout ", text,
         ": a loop of your own runs whole models, under dp or zero=1, 2, 3; for pipelines and tensors register the model with COHORT_MODEL "
         "and use `train`");
  if (layout.zero > 0 && options.optimizer.index() == 0)
    fail(ErrorCode::kBadInput, "layout ", text,
         " divides the optimizer's state, which LibTorch's optimizers cannot: give Parallel its options, "
         "{.optimizer = torch::optim::AdamWOptions(1e-3)}, and call step() without an optimizer");
  if (options.compress != "none") layout.compress = options.compress;
  if (layout.zero > 0 && layout.compress != "none")
    fail(ErrorCode::kBadInput, "compress=", layout.compress, " goes with layout dp, not with zero=", layout.zero);
  return layout;
}

}  // namespace

struct Parallel::State {
  torch::nn::Module& module;
  Session session;
  ParallelOptions options;
  Layout layout;
  double learning_rate = 0, announced_rate = 0;
  std::unique_ptr<DataParallel> data_parallel;  ///< Or
  std::unique_ptr<Strategy> strategy;
  std::vector<std::pair<at::Tensor, unsigned>> hooks;
  std::vector<const void*> hooked;
  ModuleWatch module_watch{module};
  BackwardWatch backward_watch{{}, [this] { see_module(); }};
  int64_t num_exchanges_before = 0;
  bool has_accumulated = false;

  State(torch::nn::Module& module, const Session& session, ParallelOptions options);
  ~State() {
    for (auto& [tensor, position] : hooks) tensor.remove_hook(position);
  }
  void hook_parameters();
  void see_module();
  void set_buffer_share();
  void check_hooks() const;
  [[noreturn]] static void refuse_uneven();
  void check_own(const char* call) const;
  void exchange_what_waits();
  void check_rates();
  std::vector<FlatPiece> pieces(bool saving, torch::optim::Optimizer* optimizer);
};

Parallel::State::State(torch::nn::Module& module_, const Session& session_, ParallelOptions options_)
    : module(module_), session(session_), options(std::move(options_)), layout(layout_of(options, session)) {
  if (options.sync_batch_norm && session.size() > 1) {
    std::vector<int> all(session.size());
    std::iota(all.begin(), all.end(), 0);
    convert_sync_batch_norm(module, session.group().split(all, "batch norm"));  // Beside the gradients' own order.
  }
  if (options.optimizer.index() == 0) {
    data_parallel = std::make_unique<DataParallel>(
        module, session.group(),
        DataParallelOptions{.buffers = options.buffers, .name = options.name, .compress = layout.compress, .seed = session.seed()});
  } else {
    if (options.buffers != BufferPolicy::kAverage)
      fail(ErrorCode::kBadInput, "Parallel: buffers = ", name_of(options.buffers),
           " goes with an optimizer of the program's own under layout dp");
    const UpdateRule rule = update_rule_of(options.optimizer, &learning_rate);
    strategy =
        make_strategy(module, session.group(), {.zero = layout.zero, .rule = rule, .compress = layout.compress, .seed = session.seed()});
    strategy->set_gradient_factor(1.0 / session.size());
    strategy->set_control(kRateSlot, static_cast<float>(learning_rate));
    announced_rate = learning_rate;
  }
  hook_parameters();
}

/// Before each backward(): parameters that were registered or unfrozen since count by the samples, too.
void Parallel::State::see_module() {
  if (session.size() == 1) return;
  session.check_samples_told("backward()");
  set_buffer_share();
  if (!module_watch.changed()) return;
  hook_parameters();
  module_watch.remember();
}

/// Batch-norm statistics count by the samples, as gradients do.
void Parallel::State::set_buffer_share() {
  const double share = session.weight() / session.size();
  if (data_parallel) data_parallel->set_buffer_share(share);
  else strategy->set_buffer_share(share);
}

/// Gradients count by this rank's samples, where they go to `.grad`: what autograd::grad() returns is the program's own.
void Parallel::State::hook_parameters() {
  if (session.size() == 1) return;
  for (const NamedTensor& parameter : distinct_parameters(module)) {
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
void Parallel::State::check_hooks() const {
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
  const double sum = strategy->control_sum(kRateSlot), expected = announced_rate * session.size();
  if (session.size() > 1 && std::abs(sum - expected) > 1e-5 * std::abs(expected))
    fail(ErrorCode::kFailed, "ranks step with different learning rates: this one, rank ", session.rank(), ", with ", announced_rate,
         ", their mean is ", sum / session.size(), "; a schedule that looks at the loss must be given session.mean(loss)");
  strategy->set_control(kRateSlot, static_cast<float>(learning_rate));
  announced_rate = learning_rate;
}

std::vector<FlatPiece> Parallel::State::pieces(bool saving, torch::optim::Optimizer* optimizer) {
  std::vector<FlatPiece> pieces;
  const bool saves_all = !saving || session.is_first();
  if (strategy) {
    pieces = saving ? strategy->saved_pieces() : strategy->loaded_pieces();
  } else if (saves_all) {
    const std::vector<NamedTensor> parameters = distinct_parameters(module);
    for (const auto& [name, tensor] : parameters) {
      if (!tensor.is_contiguous()) fail(ErrorCode::kBadInput, "parameter ", name, " is not contiguous; checkpoints need it to be");
      pieces.push_back({"model/" + name, alias_of(tensor.detach(), 0, {tensor.numel()}), tensor.sizes().vec(), 0});
    }
    if (optimizer)
      for (FlatPiece& piece : optimizer_pieces(*optimizer, parameters)) pieces.push_back(std::move(piece));
  }
  if (!saves_all) return pieces;
  for (const auto& [name, tensor] : distinct_buffers(module)) {
    if (!tensor.is_contiguous()) fail(ErrorCode::kBadInput, "buffer ", name, " is not contiguous; checkpoints need it to be");
    pieces.push_back({"model/" + name, alias_of(tensor.detach(), 0, {tensor.numel()}), tensor.sizes().vec(), 0});
  }
  return pieces;
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
  s.strategy->finish_backward();
  s.check_rates();
  const StepOutcome outcome = s.strategy->step({.learning_rate = s.learning_rate, .clip_norm = settings.clip_norm});
  s.strategy->zero_grad();
  s.strategy->set_sync(true);
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
  s.strategy->set_sync(false);
  return {nullptr, [strategy = s.strategy.get()](void*) { strategy->set_sync(true); }};
}

void Parallel::no_samples() {
  State& s = *state_;
  s.set_buffer_share();
  if (s.data_parallel) return s.data_parallel->exchange_without_backward();
  s.strategy->set_sync(true);
  s.strategy->exchange_without_backward();
}

void Parallel::abandon_step() {
  State& s = *state_;
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

std::string Parallel::save(const std::string& folder, int64_t step, torch::optim::Optimizer* optimizer) {
  State& s = *state_;
  Group& group = s.session.group();
  at::NoGradGuard no_grad;
  const std::string what = "cannot save to " + folder;
  const std::string nonce = group.all_gather_text(std::to_string(::getpid()), "the name of the checkpoint").front();
  CheckpointWriter writer(folder, step, nonce);
  const bool first = s.session.is_first();
  std::string path, shard;
  try {
    together(group, what, [&] {
      if (s.strategy && optimizer)
        fail(ErrorCode::kBadInput, "save(): the optimizer is the one that was given to Parallel; give none here");
      if (first) writer.begin();
    });
    together(group, what, [&] {
      std::vector<FlatPiece> mine = s.pieces(/*saving=*/true, optimizer);
      for (FlatPiece& piece : mine) piece.values = piece.values.cpu();
      std::vector<std::vector<char>> scratch;
      const std::vector<TensorPiece> pieces = ParameterPlaces().to_save(mine, scratch);
      if (!pieces.empty()) shard = to_json(writer.write_shard(group.rank(), pieces)).dump();
    });
    const std::vector<std::string> shards = group.all_gather_text(shard, "the parts of the checkpoint");
    together(group, what, [&] {
      if (!first) return;
      std::vector<ShardInfo> parts;
      for (const std::string& text : shards)
        if (!text.empty()) parts.push_back(shard_from_json(Json::parse(text)));
      path = writer.commit(parts, Json{{"step", step}, {"layout", to_json(s.layout)}, {"world_size", group.size()}});
    });
  } catch (...) {
    if (first) writer.abandon();
    throw;
  }
  return group.all_gather_text(path, "the path of the checkpoint").front();
}

int64_t Parallel::load(const std::string& folder, torch::optim::Optimizer* optimizer) {
  State& s = *state_;
  Group& group = s.session.group();
  at::NoGradGuard no_grad;
  const std::string what = "cannot load from " + folder;
  std::string path;
  together(group, what, [&] {
    if (s.strategy && optimizer) fail(ErrorCode::kBadInput, "load(): the optimizer is the one that was given to Parallel; give none here");
    if (!s.session.is_first()) return;
    std::vector<std::string> skipped;
    if (const auto newest = Checkpoint::open_latest(folder, &skipped)) path = newest->path();
    for (const std::string& line : skipped) log_warning("checkpoint skipped: " + line);
  });
  path = group.all_gather_text(path, "the path of the checkpoint").front();
  if (path.empty()) return -1;
  int64_t step = 0;
  together(group, what, [&] {
    const Checkpoint checkpoint = Checkpoint::open(path, /*verify_data=*/false);  // Rank 0 has verified it.
    step = checkpoint.step();
    std::vector<FlatPiece> pieces = s.pieces(/*saving=*/false, optimizer);
    for (const FlatPiece& piece : pieces)  // All of them before the first is written.
      if (!checkpoint.has(piece.name) || checkpoint.shape(piece.name) != piece.shape || checkpoint.dtype(piece.name) != dtype_of(piece))
        fail(ErrorCode::kBadInput, path, checkpoint.has(piece.name) ? " has another shape or type of " : " does not have ", piece.name,
             ", which this model or optimizer has");
    for (FlatPiece& piece : pieces) {
      at::Tensor here = piece.values.cpu();  // The same memory, unless it is a device's.
      checkpoint.read_range(piece.name, piece.begin, piece.begin + here.numel(), here.data_ptr());
      if (!piece.values.is_cpu()) piece.values.copy_(here);
    }
    if (optimizer) optimizer_pieces_loaded(*optimizer, pieces, distinct_parameters(s.module));
  });
  if (s.strategy) s.strategy->loaded();
  return step;
}

const ExchangeStatistics& Parallel::statistics() const {
  return state_->data_parallel ? state_->data_parallel->statistics() : state_->strategy->statistics();
}

}  // namespace cohort
