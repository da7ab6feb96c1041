#include "cohort/pipeline/stage_mail.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <memory>

#include "cohort/base/fail.h"
#include "cohort/models/graph/layer_graph.h"

namespace cohort {
namespace {

constexpr int64_t kKeyNumbers = 4;

at::Tensor key_tensor(const PacketKey& key) {
  at::Tensor tensor = at::empty({kKeyNumbers}, at::kLong);
  int64_t* const numbers = tensor.data_ptr<int64_t>();
  numbers[0] = key.kind, numbers[1] = key.from, numbers[2] = key.to, numbers[3] = key.number;
  return tensor;
}

}  // namespace

std::string describe(const PacketKey& key) {
  static const char* const kNames[] = {"activations", "gradients", "a shared weight", "the gradient of a shared weight"};
  const bool back = key.kind == PacketKey::kGradients || key.kind == PacketKey::kSharedWeightGradient;
  const std::string path = concat(" from stage ", back ? key.to : key.from, " to stage ", back ? key.from : key.to);
  const std::string of = key.kind <= PacketKey::kGradients ? concat(" of micro-batch ", key.number) : "";
  return kNames[key.kind] + of + path;
}

void PacketMail::send(const PacketKey& key, int peer, Tensors tensors) {
  tensors.insert(tensors.begin(), key_tensor(key));
  channels_.send(peer, tensors, describe(key));
}

void PacketMail::wait_for(const PacketKey& key, int peer) {
  while (!inbox_.contains(key)) {
    Tensors packet = channels_.receive(peer, describe(key));
    if (packet.empty() || !packet[0].defined() || packet[0].numel() != kKeyNumbers)
      fail(ErrorCode::kFailed, "pipeline: rank ", peer, " sent something else while rank ", group_.rank(), " waited for ", describe(key));
    const int64_t* const numbers = packet[0].const_data_ptr<int64_t>();
    const PacketKey got{numbers[0], numbers[1], numbers[2], numbers[3]};
    packet.erase(packet.begin());
    inbox_[got] = std::move(packet);
  }
}

PacketMail::Tensors PacketMail::take(const PacketKey& key) {
  const auto found = inbox_.find(key);
  if (found == inbox_.end()) fail(ErrorCode::kFailed, "pipeline: ", describe(key), " was not received before it is used");
  Tensors packet = std::move(found->second);
  inbox_.erase(found);
  return packet;
}

namespace {

using Parameters = torch::OrderedDict<std::string, at::Tensor>;

/// LibTorch cannot unregister a parameter, but a subclass may access the member.
struct Access : torch::nn::Module {
  static Parameters& of(torch::nn::Module& module) { return module.*(&Access::parameters_); }
};

std::shared_ptr<torch::nn::Module> holder_of(const torch::nn::Module& module, const std::string& name) {
  const size_t dot = name.rfind('.');
  const auto modules = module.named_modules("", /*include_self=*/false);
  const std::shared_ptr<torch::nn::Module>* const found = dot == std::string::npos ? nullptr : modules.find(name.substr(0, dot));
  if (!found || !(*found)->named_parameters(/*recurse=*/false).contains(name.substr(dot + 1)))
    fail(ErrorCode::kBadInput, "the model has no parameter ", name);
  return *found;
}

}  // namespace

at::Tensor find_parameter(const torch::nn::Module& module, const std::string& name) {
  return holder_of(module, name)->named_parameters(/*recurse=*/false)[name.substr(name.rfind('.') + 1)];
}

namespace {

/// Takes the parameter out of the module's list (parameters() no longer shows it) while the layer goes on using it: it becomes a leaf with
/// values of its own. Returns it.
at::Tensor hide_parameter(torch::nn::Module& module, const std::string& name) {
  const std::shared_ptr<torch::nn::Module> holder = holder_of(module, name);
  Parameters& parameters = Access::of(*holder);
  const std::string own = name.substr(name.rfind('.') + 1);
  at::Tensor tensor = parameters[own];
  parameters.erase(own);
  // Its memory may be another layer's: use a copy.
  tensor.set_data(tensor.detach().clone());
  return tensor;
}

PacketKey key_of(const TiedWeight& weight, int64_t number, PacketKey::Kind kind) { return {kind, weight.owner, weight.user, number}; }

}  // namespace

TiedWeights::TiedWeights(LayerGraph& graph, std::vector<TiedWeight> weights, std::vector<std::vector<int>> ranks_of_stage, Group group)
    : rank_(group.rank()) {
  const auto runs = [&](int rank, int stage) {
    const std::vector<int>& ranks = ranks_of_stage[static_cast<size_t>(stage)];
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  };
  std::map<std::string, at::Tensor> borrowed;
  for (size_t number = 0; number < weights.size(); ++number) {
    const TiedWeight& weight = weights[number];
    const std::vector<int>&owners = ranks_of_stage[static_cast<size_t>(weight.owner)],
          &users = ranks_of_stage[static_cast<size_t>(weight.user)];
    for (size_t user = 0; user < users.size(); ++user) {
      if (runs(users[user], weight.owner)) continue;  // Both stages are on one rank: one tensor, and autograd accumulates.
      Loan loan{static_cast<int64_t>(number), weight, owners[user % owners.size()], users[user], {}};
      if (loan.lender == rank_) loan.tensor = find_parameter(graph, weight.name);
      if (loan.borrower == rank_) {
        // Layers of one rank that borrow the same weight share one tensor.
        loan.tensor = hide_parameter(graph, weight.user_name);
      }
      if (loan.tensor.defined()) loans_.push_back(std::move(loan));
    }
  }
}

void TiedWeights::lend(PacketMail& mail) {
  at::NoGradGuard no_grad;
  for (Loan& loan : loans_) {
    const PacketKey key = key_of(loan.weight, loan.number, PacketKey::kSharedWeight);
    if (loan.lender == rank_) {
      mail.send(key, loan.borrower, {loan.tensor.detach()});
    } else {
      mail.wait_for(key, loan.lender);
      const at::Tensor value = mail.take(key).at(0);
      loan.tensor.detach().copy_(change_ ? change_(loan.number, value) : value);
      loan.tensor.mutable_grad() = at::Tensor();
    }
  }
}

void TiedWeights::give_back(PacketMail& mail) {
  for (Loan& loan : loans_) {
    const PacketKey key = key_of(loan.weight, loan.number, PacketKey::kSharedWeightGradient);
    if (loan.borrower == rank_) {
      mail.send(key, loan.lender, {loan.tensor.grad()});
      loan.tensor.mutable_grad() = at::Tensor();
    } else {
      mail.wait_for(key, loan.borrower);
      const at::Tensor gradient = mail.take(key).at(0);
      // Like backward(): accumulates into `.grad`, with hooks.
      if (gradient.defined() && loan.tensor.requires_grad()) torch::autograd::backward({loan.tensor}, {gradient});
    }
  }
}

}  // namespace cohort
