// The engine by layout:
//   dp, the program's own optimizer     DataParallel averages gradients; weights and optimizer state are whole on every rank
//   dp, ParallelOptions::optimizer      one copy of the weights on a host whose ranks share memory, else replicated
//   zero=1..3                           ZeroDataParallel
//   pp, tp, recompute                   one of the last two, over the ranks that have the same part of the model (split_model.h)
#include "cohort/session/parallel_state.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/log.h"
#include "cohort/checkpoint/checkpoint.h"
#include "cohort/comm/together.h"
#include "cohort/job/option_rules.h"
#include "cohort/job/refusals.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/parallel/batch_norm/convert_sync_batch_norm.h"
#include "cohort/parallel/make_strategy.h"
#include "cohort/train/model/checkpoint_pieces.h"

namespace cohort {
namespace {

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
  if (layout.accumulate > 0 || !layout.precision.empty() || !layout.shares.empty())
    fail(ErrorCode::kBadInput, "layout ", text, ": accumulate, precision and shares are for `cohort train`; here the loop says how often ",
         "backward() runs, in which precision and on which samples, so leave them out");
  if (!is_step(layout.sync))
    fail(ErrorCode::kBadInput, "layout ", text, ": sync=", layout.sync,
         " is for `cohort train`, whose loop knows when workers exchange; here use sync=step");
  if (const auto refused = refusal_of(layout)) throw Error(ErrorCode::kBadInput, *refused);
  if (layout.is_model_parallel() && options.sync_batch_norm)
    fail(ErrorCode::kBadInput, "layout ", to_text(layout), ": sync_batch_norm goes with dp and zero; use a norm over groups or layers");
  const Config defaults;
  check_options({.config = defaults, .layout = layout, .num_ranks = session.size()});
  return layout;
}

/// Error for a module of another Parallel, which has hooked its gradients, and under zero=3 freed its weights.
torch::nn::Module& of_no_other(torch::nn::Module& module) {
  for (const NamedTensor& parameter : distinct_parameters(module))
    if (parameter.tensor.requires_grad()) check_no_gradient_hook(parameter);
  return module;
}

namespace optim = torch::optim;

UpdateRule adam_rule(UpdateRule::Kind kind, double beta1, double beta2, double eps, double weight_decay, bool amsgrad) {
  if (amsgrad)
    fail(ErrorCode::kBadInput,
         "amsgrad: the optimizers of Cohort have no such variant; leave it out, or use LibTorch's optimizer under layout dp");
  return {.kind = kind, .beta1 = beta1, .beta2 = beta2, .eps = eps, .weight_decay = weight_decay};
}

FlatPiece whole(const std::string& name, const at::Tensor& tensor, std::vector<int64_t> shape) {
  if (!tensor.is_contiguous()) fail(ErrorCode::kBadInput, name, " is not contiguous; checkpoints need it to be");
  return {name, alias_of(tensor.detach(), 0, {tensor.numel()}), std::move(shape), 0};
}

/// The state of a parameter, made if it is missing.
template <typename State>
State& state_of(optim::Optimizer& optimizer, const at::Tensor& parameter) {
  auto& held = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (!held) held = std::make_unique<State>();
  return static_cast<State&>(*held);
}

template <typename State>
void add_adam(optim::Optimizer& optimizer, const NamedTensor& parameter, bool amsgrad, std::vector<FlatPiece>* pieces) {
  if (amsgrad)
    fail(ErrorCode::kBadInput,
         "checkpoints of Parallel do not hold the state of amsgrad; save this optimizer with torch::save on the first rank");
  State& state = state_of<State>(optimizer, parameter.tensor);
  if (!state.exp_avg().defined()) state.exp_avg(at::zeros_like(parameter.tensor.detach()));
  if (!state.exp_avg_sq().defined()) state.exp_avg_sq(at::zeros_like(parameter.tensor.detach()));
  const std::string name = "optimizer/" + parameter.name;
  pieces->push_back(whole(name + "/exp_avg", state.exp_avg(), parameter.tensor.sizes().vec()));
  pieces->push_back(whole(name + "/exp_avg_sq", state.exp_avg_sq(), parameter.tensor.sizes().vec()));
  pieces->push_back({name + "/step", at::full({1}, static_cast<float>(state.step()), at::kFloat), {}, 0});
}

}  // namespace

Parallel::State::State(torch::nn::Module& module_, const Session& session_, ParallelOptions options_)
    : module(of_no_other(module_)),
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
  session.divide_by(split ? split->share_index() : session.rank(), num_replicas(), split ? split->place().random_stream() : session.rank());
  module_watch.emplace(trained());
  session.add_parameters(module);
  changed_weights.look_again();
  hook_parameters();
  if (session.size() > 1 || layout.zero > 1) gradients = HiddenGradients(distinct_parameters(trained()));
  hide_gradients();
}

void Parallel::State::share_batch_norm() {
  Group group = session.group();
  if (group.size() > 1) {
    std::vector<int> all(session.size());
    std::iota(all.begin(), all.end(), 0);
    group = group.split(all, "batch norm");  // Its exchanges are not in the order of those of gradients.
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
  if (has_parts()) strategy->set_counted_elsewhere(split->place().counted_elsewhere(split->part()));
  if (is_pipeline()) strategy->hold_gradients();
  strategy->set_gradient_factor(1.0 / num_replicas());
  strategy->set_control(kRateSlot, static_cast<float>(learning_rate));
  announced_rate = learning_rate;
}

UpdateRule update_rule_of(const OptimizerOptions& options, double* learning_rate) {
  if (const auto* sgd = std::get_if<optim::SGDOptions>(&options)) {
    if (sgd->dampening() != 0)
      fail(ErrorCode::kBadInput,
           "dampening: the optimizers of Cohort have none; leave it out, or use LibTorch's optimizer under layout dp");
    *learning_rate = sgd->lr();
    const auto kind = sgd->momentum() == 0 ? UpdateRule::Kind::kSgd
                      : sgd->nesterov()    ? UpdateRule::Kind::kNesterov
                                           : UpdateRule::Kind::kMomentum;
    return {.kind = kind, .momentum = sgd->momentum(), .weight_decay = sgd->weight_decay()};
  }
  if (const auto* adam = std::get_if<optim::AdamOptions>(&options)) {
    *learning_rate = adam->lr();
    return adam_rule(UpdateRule::Kind::kAdam, std::get<0>(adam->betas()), std::get<1>(adam->betas()), adam->eps(), adam->weight_decay(),
                     adam->amsgrad());
  }
  const auto& adamw = std::get<optim::AdamWOptions>(options);
  *learning_rate = adamw.lr();
  return adam_rule(UpdateRule::Kind::kAdamW, std::get<0>(adamw.betas()), std::get<1>(adamw.betas()), adamw.eps(), adamw.weight_decay(),
                   adamw.amsgrad());
}

std::vector<FlatPiece> optimizer_pieces(optim::Optimizer& optimizer, const std::vector<NamedTensor>& parameters) {
  std::map<const void*, const NamedTensor*> named;
  for (const NamedTensor& parameter : parameters) named[parameter.tensor.unsafeGetTensorImpl()] = &parameter;
  std::vector<FlatPiece> pieces;
  for (const optim::OptimizerParamGroup& group : optimizer.param_groups())
    for (const at::Tensor& tensor : group.params()) {
      const auto found = named.find(tensor.unsafeGetTensorImpl());
      if (found == named.end())
        fail(ErrorCode::kBadInput, "the optimizer has a parameter of shape ", tensor.sizes(),
             " that is not the model's; make it anew from the model's parameters()");
      const NamedTensor& parameter = *found->second;
      if (dynamic_cast<optim::AdamW*>(&optimizer)) {
        add_adam<optim::AdamWParamState>(optimizer, parameter, static_cast<const optim::AdamWOptions&>(group.options()).amsgrad(), &pieces);
      } else if (dynamic_cast<optim::Adam*>(&optimizer)) {
        add_adam<optim::AdamParamState>(optimizer, parameter, static_cast<const optim::AdamOptions&>(group.options()).amsgrad(), &pieces);
      } else if (dynamic_cast<optim::SGD*>(&optimizer)) {
        if (static_cast<const optim::SGDOptions&>(group.options()).momentum() == 0) continue;
        auto& state = state_of<optim::SGDParamState>(optimizer, tensor);
        if (!state.momentum_buffer().defined()) state.momentum_buffer(at::zeros_like(tensor.detach()));
        pieces.push_back(whole("optimizer/" + parameter.name + "/momentum", state.momentum_buffer(), tensor.sizes().vec()));
      } else {
        fail(ErrorCode::kBadInput,
             "checkpoints of Parallel hold the state of SGD, Adam and AdamW; save another optimizer with torch::save on the first rank and "
             "give none here");
      }
    }
  return pieces;
}

void optimizer_pieces_loaded(optim::Optimizer& optimizer, const std::vector<FlatPiece>& pieces,
                             const std::vector<NamedTensor>& parameters) {
  std::map<std::string, at::Tensor> steps;
  for (const FlatPiece& piece : pieces)
    if (piece.name.ends_with("/step")) steps[piece.name] = piece.values;
  for (const NamedTensor& parameter : parameters) {
    const auto found = steps.find("optimizer/" + parameter.name + "/step");
    if (found == steps.end()) continue;
    const auto count = static_cast<int64_t>(found->second.item<float>());
    if (dynamic_cast<optim::AdamW*>(&optimizer)) state_of<optim::AdamWParamState>(optimizer, parameter.tensor).step(count);
    else state_of<optim::AdamParamState>(optimizer, parameter.tensor).step(count);
  }
}

// save() and load() use the names, shapes and files of `cohort train`, whatever the layout.

/// The pieces that this rank writes or reads.
std::vector<FlatPiece> Parallel::State::pieces(bool saving, torch::optim::Optimizer* optimizer) {
  std::vector<FlatPiece> pieces;
  const bool saves_all = !saving || (split ? split->places().saves_buffers : session.is_first());
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
  if (saves_all)
    for (FlatPiece& buffer : buffer_pieces(trained())) pieces.push_back(std::move(buffer));
  return pieces;
}

std::string Parallel::save(const std::string& folder, int64_t step, torch::optim::Optimizer* optimizer) {
  State& s = *state_;
  const ParameterPlaces places = s.split ? s.split->places() : ParameterPlaces();
  const auto mine = [&] {
    if (s.strategy && optimizer) fail(ErrorCode::kBadInput, "save(): the optimizer is the one that was given to Parallel; give none here");
    return s.pieces(/*saving=*/true, optimizer);
  };
  const auto state = [&] {
    Json aliases = Json::object();
    for (const auto& [alias, name] : places.aliases) aliases[alias] = name;
    return Json{{"step", step},
                {"layout", to_json(s.layout)},
                {"world_size", s.session.size()},
                {"aliases", aliases},
                {"num_passes", s.num_passes}};
  };
  return write_checkpoint(s.session.group(), places, {.folder = folder, .step = step, .mine = mine, .state = state},
                          "cannot save to " + folder);
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
    const Checkpoint checkpoint = Checkpoint::open(path, /*verify_data=*/false);  // Rank 0 has verified the data.
    step = checkpoint.step();
    // The key of the masks of cohort::Dropout, for which `cohort train` uses its steps.
    s.num_passes = s.num_passes_before = checkpoint.state().value("num_passes", step);
    const ParameterPlaces places = s.split ? s.split->places() : ParameterPlaces();
    std::vector<FlatPiece> pieces = s.pieces(/*saving=*/false, optimizer);
    for (const FlatPiece& piece : pieces) check_piece(checkpoint, places, piece);  // All of them before the first is read.
    for (FlatPiece& piece : pieces) read_piece(checkpoint, places, piece);
    if (optimizer) optimizer_pieces_loaded(*optimizer, pieces, distinct_parameters(s.module));
  });
  if (s.strategy) s.strategy->loaded();
  return step;
}

}  // namespace cohort
