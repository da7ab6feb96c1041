#pragma once
// Where to cut a model into stages. Torch-free.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/plan/profile/profile.h"

namespace cohort {

struct SplitOptions {
  int num_stages = 1;
  int num_micro_batches = 1;
  int num_ranks = 0;                     ///< 0: one a stage. Fewer: stages are dealt as an interleaved schedule deals them.
  int64_t memory_bytes = 0;              ///< Of a rank; 0: no limit.
  double optimizer_bytes_factor = 1;     ///< Optimizer state as a multiple of the weights' bytes.
  std::vector<int> stash_micro_batches;  ///< Micro-batches that each stage keeps at most; empty: num_stages - stage (1F1B).
};

struct Split {
  std::vector<int> first_layer;  ///< Of each stage; stages are runs of the layers in their order. first_layer[0] == 0.
  struct Stage {
    double seconds = 0;           ///< Forward and backward of a micro-batch.
    double transfer_seconds = 0;  ///< Its messages of a micro-batch.
    int64_t memory_bytes = 0;
  };
  std::vector<Stage> stages;
  double bottleneck_seconds = 0;  ///< Largest seconds + transfer_seconds of a stage (of a rank where ranks have several).
  bool exact = true;              ///< best_split() has proved that no cut is better.
};

/// The cut whose slowest stage is fastest, among all that fit; ties go to the smaller sum of transfers. By dynamic programming over (layers
/// placed, stages used), see split_search.h; where ranks have several stages by search. Error(kInfeasible) where
/// nothing fits, with the least memory that would do; Error(kBadInput) where there are fewer layers than stages.
Split best_split(const Profile& profile, const SplitOptions& options);
/// Equal numbers of layers: what people do by hand. Memory is told, not limited; so too for given_split().
COHORT_PROGRAM_API Split even_split(const Profile& profile, const SplitOptions& options);
/// "3/7": first layers of stages 1, 2, ... (their number is options.num_stages). Error(kBadInput).
COHORT_PROGRAM_API Split given_split(const Profile& profile, const SplitOptions& options, const std::vector<int>& cuts);

/// First layers of stages with equal numbers of layers.
std::vector<int> even_cuts(int num_layers, int num_stages);
/// How many cuts there are, and the next one in lexicographic order; false after the last.
double num_cuts(int num_layers, int num_stages);
bool next_cut(std::vector<int>& first_layer, int num_layers);

/// Most memory of a rank: the sum over its stages.
int64_t most_memory_bytes(const Split& split, int num_ranks);

/// A table of what each stage got, for people: times in ms, bytes in MB (10^6).
std::string describe(const Profile& profile, const Split& split);

}  // namespace cohort
