#pragma once
// What stages send each other: packets that say what they are, so that one that comes early can wait for its turn.

#include <ATen/core/Tensor.h>

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/comm/tensor_channels.h"

namespace cohort {

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

}  // namespace cohort
