#pragma once
// Costs of the stages of a cut: the sums that all searches and the final result share, so that they agree to the last bit.

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "cohort/plan/cut/split.h"
#include "cohort/plan/profile/profile.h"

namespace cohort {

/// Transfers of a micro-batch. Integers, so that sums in any order are equal.
struct Traffic {
  int64_t num_values = 0, bytes = 0;
  void add(const Traffic& other, int64_t times = 1) {
    num_values += times * other.num_values;
    bytes += times * other.bytes;
  }
};

class SplitCosts {
 public:
  /// Error(kBadInput) for an invalid profile or invalid options.
  SplitCosts(const Profile& profile, const SplitOptions& options);

  int num_layers() const { return static_cast<int>(readers_.size()); }
  int num_stages() const { return num_stages_; }
  int num_ranks() const { return num_ranks_; }
  int rank_of(int stage) const { return stage % num_ranks_; }

  /// Layers [first, end): forward and backward.
  double compute_seconds(int first, int end) const { return seconds_before_[end] - seconds_before_[first]; }
  /// A value goes one way in forward and its gradient the other in backward.
  double transfer_seconds(const Traffic& traffic) const {
    const double bytes_seconds = rate_ > 0 ? static_cast<double>(traffic.bytes) / rate_ : 0;
    return 2 * (static_cast<double>(traffic.num_values) * latency_seconds_ + bytes_seconds);
  }
  /// Layers [first, end) as stage `stage`; rises with `end` where `received_bytes` is 0.
  int64_t memory_bytes(int stage, int first, int end, int64_t received_bytes) const;

  /// Layers that read the output of `layer`, rising, each once.
  const std::vector<int>& readers(int layer) const { return readers_[layer]; }
  Traffic value_of(int layer) const { return {1, output_bytes_[layer]}; }

  /// Time and memory of every stage of a cut.
  Split account(std::vector<int> first_layer) const;
  /// Stages of about equal computing time: where a search starts.
  std::vector<int> equal_seconds() const;

 private:
  int num_stages_, num_ranks_;
  double latency_seconds_, rate_, weight_factor_;
  std::vector<int> kept_;               // Micro-batches, one a stage.
  std::vector<double> seconds_before_;  // Sums over the layers before.
  std::vector<int64_t> weights_before_, stash_before_;
  std::vector<int64_t> output_bytes_;
  std::vector<std::vector<int>> readers_;
};

// Dynamic programming over (layers placed, stages used) where every stage has a rank of its own.

enum class SplitGoal {
  kBottleneck,  ///< Least seconds of the slowest stage.
  kTransfers,   ///< Least sum of the stages' transfers.
  kMemory,      ///< Least memory of the largest stage; limits on seconds are not looked at.
};

struct SplitLimits {
  double seconds = std::numeric_limits<double>::infinity();  ///< Limit per stage.
  int64_t memory_bytes = std::numeric_limits<int64_t>::max();
};

struct FoundSplit {
  std::vector<int> first_layer;
  bool exact = true;
};

/// The best cut within the limits; empty where none is.
std::optional<FoundSplit> search_split(const SplitCosts& costs, SplitGoal goal, const SplitLimits& limits);

/// Where ranks have several stages, which are dealt to them in turn. The least (bytes over the limit, bottleneck,
/// transfers) that was found.
FoundSplit search_dealt_split(const SplitCosts& costs, int64_t memory_limit_bytes, const std::vector<std::vector<int>>& starts);

}  // namespace cohort
