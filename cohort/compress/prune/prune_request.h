#pragma once
// What `cohort compress prune` was asked for. Torch-free.

#include <string>

#include "cohort/compress/tuning/fine_tuning.h"

namespace cohort {

struct PruneRequest {
  std::string granularity = "weight";  ///< "weight", "2:4" or "channel".
  double sparsity = 0.9;               ///< Part of the weights, or channels, that goes; 0.5 for 2:4.
  FineTuningRequest tuning;

  bool is_channel() const { return granularity == "channel"; }
  /// "weight:0.9", "2:4", "channel:0.5"
  std::string how() const;
};

/// Error(kBadInput) for a granularity or sparsity that is none.
void check_prune_request(const PruneRequest& request);
/// Error(kBadInput) for a file whose weights are codes.
void check_can_be_pruned(const TrainedFile& file);

}  // namespace cohort
