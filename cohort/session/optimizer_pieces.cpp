#include "cohort/session/optimizer_pieces.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>

#include <map>

#include "cohort/base/fail.h"
#include "cohort/parallel/common/flat_piece.h"
#include "cohort/parallel/common/parameters.h"

namespace cohort {
namespace {

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

/// The state of one parameter, made where there is none.
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

}  // namespace cohort
