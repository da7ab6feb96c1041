#pragma once
// What passes between the stages of a pipeline: packets, and the weights that several of them use.

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

// What stages send each other: packets that say what they are, so that one that comes early can wait for its turn.

struct PacketKey {
  enum Kind : int64_t { kActivations, kGradients, kSharedWeight, kSharedWeightGradient };
  int64_t kind = kActivations;
  int64_t from = 0, to = 0;  ///< Stages; gradients go from `to` to `from`.
  int64_t number = 0;        ///< Of the micro-batch, or of the shared weight.
  auto operator<=>(const PacketKey&) const = default;
};
std::string describe(const PacketKey& key);

/// One thread. Errors as TensorChannels'.
class PacketMail {
 public:
  using Tensors = std::vector<at::Tensor>;

  explicit PacketMail(Group group) : group_(group), channels_(group) {}

  void send(const PacketKey& key, int peer, Tensors tensors);
  /// Until the packet is here; others that come before it are put aside.
  void wait_for(const PacketKey& key, int peer);
  /// Error(kFailed) where it was not waited for.
  Tensors take(const PacketKey& key);
  void forget() { inbox_.clear(); }
  TensorChannels& channels() { return channels_; }

 private:
  Group group_;
  TensorChannels channels_;
  std::map<PacketKey, Tensors> inbox_;
};

// Weights that a module uses and another rank owns.

/// By its dotted name. Error(kBadInput) where there is none.
at::Tensor find_parameter(const torch::nn::Module& module, const std::string& name);

// Weights that layers of several stages use (an embedding and the output layer). One lives, and is trained, in the first of these stages;
// the others get its value before each step and hand their gradients back after it, once each, so that optimizers, sharding and clipping
// see one weight. Cost a step and user: two messages of the weight's size.

/// What a borrowed weight is made of what came of it: for checks that must fail.
using BorrowedChange = std::function<at::Tensor(int64_t number, const at::Tensor& value)>;

/// One rank's part. Replica u of a stage borrows from replica u mod (number of owners).
class TiedWeights {
 public:
  /// Before layers of other ranks are dropped from `graph`: borrowed weights are taken out of its parameters. `ranks_of_stage` are ranks of
  /// `group`, by stage.
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
    at::Tensor tensor;  ///< Of this rank; undefined where it has no part in it.
  };
  int rank_;
  std::vector<Loan> loans_;
  BorrowedChange change_;
};

}  // namespace cohort
