#pragma once
// What each rank has: its device (--device) and its part of the batch (--shares). Torch-free: which GPUs there are is found by the ranks
// (train/model/precision.h).

#include <string>
#include <vector>

namespace cohort {

struct DeviceChoice {
  bool is_gpu = false;
  int index = -1;  ///< Of the GPUs of its host; -1: the ranks of a host take in turn those that no other entry names.
};

struct Devices {
  std::vector<DeviceChoice> entries = {DeviceChoice()};  ///< One for all ranks, or one a rank.

  bool all_cpu() const;
  bool any_cpu() const;
  bool is_list() const { return entries.size() > 1; }
  /// Error(kBadInput) where the list is not one entry a rank.
  void check(int num_ranks) const;
  const DeviceChoice& of(int rank) const;
};
/// "cpu", "cuda", "cuda:1", or one of them a rank with commas between. Error(kBadInput) saying what is wrong with anything else.
Devices parse_devices(const std::string& text);
std::string to_text(const DeviceChoice& choice);
/// Of the ranks that are left: a list without the entries of ranks from `num_ranks` on.
std::string first_devices_of(const std::string& text, int num_ranks);

/// The GPU of rank `rank`, whose entry is one: the index of its entry, else its turn among the ranks of its host (the first of which is
/// `first_of_host`) whose entries have none, over the GPUs that no entry of the host names, or all where every one is named.
int gpu_of_rank(const Devices& devices, int rank, int first_of_host, int ranks_of_host, int num_gpus);

// `--shares`: how much of the global batch each rank takes.

struct Shares {
  bool automatic = false;       ///< By measured speed, from equal ones on.
  std::vector<double> weights;  ///< One a rank; empty: all alike.

  bool are_equal() const;  ///< At the start.
  /// One for each of `num_ranks`. Error(kBadInput) where others are named.
  std::vector<double> of(int num_ranks) const;
};
/// "equal", "auto", or one positive number a rank: "3:1:1". Error(kBadInput) saying what is wrong with anything else.
Shares parse_shares(const std::string& text);

}  // namespace cohort
