#pragma once
// Packets between the stages of a pipeline, and weights that several stages use.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/comm/tensor_channels.h"
#include "cohort/pipeline/stage_cut.h"

namespace cohort {

class LayerGraph;

// Packets with a key, so that one that arrives early can wait for its use.

struct PacketKey {
  enum Kind : int64_t { kActivations, kGradients, kSharedWeight, kSharedWeightGradient };
  int64_t kind = kActivations;
  int64_t from = 0, to = 0;  ///< Stages; gradients go from `to` to `from`.
  int64_t number = 0;        ///< Of the micro-batch or the shared weight.
  auto operator<=>(const PacketKey&) const = default;
};
std::string describe(const PacketKey& key);

/// One thread. Errors as TensorChannels'.
class PacketMail {
 public:
  using Tensors = std::vector<at::Tensor>;

  explicit PacketMail(Group group) : group_(group), channels_(group) {}

  void send(const PacketKey& key, int peer, Tensors tensors);
  /// Waits for the packet; others that arrive before it are stored.
  void wait_for(const PacketKey& key, int peer);
  /// Error(kFailed) where wait_for() was not called before.
  Tensors take(const PacketKey& key);
  void forget() { inbox_.clear(); }
  TensorChannels& channels() { return channels_; }

 private:
  Group group_;
  TensorChannels channels_;
  std::map<PacketKey, Tensors> inbox_;
};

/// A parameter by its dotted name. Error(kBadInput) where there is none.
at::Tensor find_parameter(const torch::nn::Module& module, const std::string& name);

// Weights used by layers of several stages (an embedding and the output layer). The first of these stages owns and trains the weight; the
// others borrow its value before each step and return their gradients after it, once each, so that optimizers, sharding and clipping see
// one weight. Cost per step and user: two messages of the weight's size.

/// Changes a borrowed weight, for fault injection.
using BorrowedChange = std::function<at::Tensor(int64_t number, const at::Tensor& value)>;

/// One rank's side. Replica u of a stage borrows from replica u mod (number of owners).
class TiedWeights {
 public:
  /// Call before layers of other ranks are dropped from `graph`: borrowed weights are removed from its parameters. `ranks_of_stage`: ranks
  /// of `group`, by stage.
  TiedWeights(LayerGraph& graph, std::vector<TiedWeight> weights, std::vector<std::vector<int>> ranks_of_stage, Group group);
  void lend(PacketMail& mail);
  void give_back(PacketMail& mail);
  /// See PipelineRunner.
  void change_borrowed(BorrowedChange change) { change_ = std::move(change); }

 private:
  struct Loan {
    int64_t number;
    TiedWeight weight;
    int lender, borrower;
    at::Tensor tensor;  ///< On this rank.
  };
  int rank_;
  std::vector<Loan> loans_;
  BorrowedChange change_;
};

}  // namespace cohort
