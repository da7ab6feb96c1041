#pragma once
// Where to cut a model into stages, which of their layers to recompute, and which ranks run parallel branches. Torch-free.

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/job/layout.h"
#include "cohort/plan/profile/profile.h"

namespace cohort {

struct SplitOptions {
  int num_stages = 1;
  int num_micro_batches = 1;
  int num_ranks = 0;                  ///< 0: one per stage. Fewer: stages are assigned as in interleaved schedules.
  int64_t memory_bytes = 0;           ///< Limit per rank; 0: none.
  double optimizer_bytes_factor = 1;  ///< Optimizer state as a multiple of the weights' bytes.
};

struct Split {
  std::vector<int> first_layer;  ///< First layer of each stage, a run of the layers. first_layer[0] == 0.
  struct Stage {
    double seconds = 0;           ///< Forward and backward per micro-batch.
    double transfer_seconds = 0;  ///< Its messages per micro-batch.
    int64_t memory_bytes = 0;
  };
  std::vector<Stage> stages;
  double bottleneck_seconds = 0;  ///< Largest seconds + transfer_seconds of a stage (of a rank where ranks have several).
  bool exact = true;              ///< best_split() has proved that no cut is better.
};

/// The cut with the least bottleneck among all that fit; ties go to the smaller sum of transfers. By dynamic programming
/// (split_search.cpp), or by search where ranks have several stages. Error(kInfeasible) where nothing fits, with the least memory that
/// would; Error(kBadInput) where there are fewer layers than stages.
Split best_split(const Profile& profile, const SplitOptions& options);
/// A cut into equal numbers of layers. Memory is reported, not limited; also by given_split().
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

/// A table of the stages: times in ms, bytes in MB (10^6).
std::string describe(const Profile& profile, const Split& split);

// split=auto: the cut with the least forecast of a step.

/// The cut with the least forecast of a step under the layout's schedule, searched from best_split() and even_split(), within
/// options.memory_bytes. `worker_of_stage` is that of the schedule. Errors are those of best_split().
COHORT_PROGRAM_API Split auto_split(const Profile& profile, const Layout& layout, const SplitOptions& options,
                                    const std::vector<int>& worker_of_stage);

/// Seconds of a step with this cut (first layers of the stages); infinite where it does not fit.
using StepSeconds = std::function<double(const std::vector<int>& first_layer)>;

/// The cut of `num_layers` layers into as many stages as the `starts` have, with the least `seconds`: of all cuts where they are few, else
/// of those visited by a descent from each start (split.cpp). Ties go to the cut visited first, beginning with the starts in order.
/// Error(kBadInput) for invalid starts.
std::vector<int> improve_split(int num_layers, const std::vector<std::vector<int>>& starts, const StepSeconds& seconds);

// Which layers of a stage to recompute in backward, so that it fits.

struct RecomputeOptions {
  int first_layer = 0, end_layer = 0;  ///< The stage is layers [first_layer, end_layer).
  int kept_micro_batches = 1;          ///< Peak number: peak_stash of check_schedule().
  int64_t memory_bytes = 0;            ///< Limit of the stage's rank; 0: none.
  double optimizer_bytes_factor = 1;   ///< As in SplitOptions.
};

struct RecomputeChoice {
  std::vector<bool> layers;  ///< One a layer of the profile; only layers of the stage are set. For LayerGraph::set_recompute().
  double seconds = 0;        ///< What it costs: a second forward of these layers, a micro-batch.
  int64_t memory_bytes = 0;
  bool exact = true;  ///< No cheaper set fits; false where there were too many.
};

/// Memory of the stage is
///   weights x (2 + optimizer_bytes_factor) + kept micro-batches x (received + kept) + the largest stash of a recomputed layer
/// where a recomputed layer keeps nothing but its inputs, and its output where another layer needs it. Without recomputed layers this is
/// the memory of a stage of a Split.
///
/// The cheapest set that fits, by branch and bound where that ends soon, else by seconds for each byte: see recompute_choice.cpp. Error
/// (kInfeasible) with the least memory where no set fits, Error(kBadInput) for an invalid stage.
RecomputeChoice choose_recompute(const Profile& profile, const RecomputeOptions& options);

// Which layers of a model with parallel branches go to which rank, so that branches run side by side and join again.

struct BranchPlacement {
  std::vector<int> first_layer;            ///< First layer of each stage, a run of the layers. first_layer[0] == 0.
  std::vector<int> rank;                   ///< Rank of each stage, from 0 without gaps; a rank may have several stages.
  std::vector<std::pair<int, int>> edges;  ///< (from, to), from < to, sorted, each once: which stage hands values to which.
  double seconds = 0;                      ///< Estimate for forward and backward of one micro-batch.
  double one_rank_seconds = 0;             ///< The estimate on one rank, never less.
  bool exact = true;                       ///< No other placement of whole branches has a lower estimate; false where there were too many.

  int num_stages() const { return static_cast<int>(first_layer.size()); }
};

/// The placement on at most `num_ranks` ranks with the least estimated time, by branch and bound where that ends soon, else greedily: see
/// branches.cpp. A model without branches is one stage. Memory is ignored. Error(kBadInput) for an invalid profile.
BranchPlacement place_branches(const Profile& profile, int num_ranks);

}  // namespace cohort
