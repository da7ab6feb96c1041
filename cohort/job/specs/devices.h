#pragma once
// The device (--device) and the share of the batch (--shares) of each rank. Torch-free: the ranks themselves detect GPUs
// (train/model/precision.h).

#include <string>
#include <vector>

namespace cohort {

struct DeviceChoice {
  bool is_gpu = false;
  int index = -1;  ///< GPU of its host; -1: assigned round-robin to GPUs that no entry names.
};

struct Devices {
  std::vector<DeviceChoice> entries = {DeviceChoice()};  ///< One for all ranks, or one per rank.

  bool all_cpu() const;
  bool any_cpu() const;
  bool is_list() const { return entries.size() > 1; }
  /// Error(kBadInput) where a list does not have one entry per rank.
  void check(int num_ranks) const;
  const DeviceChoice& of(int rank) const;
};
/// "cpu", "cuda", "cuda:1", or one of them per rank with commas between. Error(kBadInput) otherwise.
Devices parse_devices(const std::string& text);
std::string to_text(const DeviceChoice& choice);
/// The entries of the first `num_ranks` ranks as text.
std::string first_devices(const std::string& text, int num_ranks);

/// The GPU of a rank with a GPU entry: its index, else round-robin among the ranks of its host (the first of which is `first_of_host`)
/// without index, over the GPUs that no entry of the host names, or over all where every one is named.
int gpu_of_rank(const Devices& devices, int rank, int first_of_host, int ranks_of_host, int num_gpus);

/// `--shares`: each rank's share of the global batch.
struct Shares {
  bool automatic = false;       ///< Adapted to measured speed, initially equal.
  std::vector<double> weights;  ///< Per rank; empty: equal.

  bool are_equal() const;  ///< Initially.
  /// The weights of `num_ranks` ranks. Error(kBadInput) for another number of weights.
  std::vector<double> of(int num_ranks) const;
};
/// "equal", "auto", or one positive number per rank: "3:1:1". Error(kBadInput) otherwise.
Shares parse_shares(const std::string& text);

}  // namespace cohort
