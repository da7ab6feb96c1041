#pragma once
// Where to cut, and which layers to run again in backward, chosen together. Internal to this folder.

#include <optional>
#include <vector>

#include "cohort/plan/search/cost_table.h"

namespace cohort {

/// What the search asks: stages are runs of the layers, stage k + 1 behind stage k.
struct CutProblem {
  std::vector<const LayerCosts*> costs;  ///< One a stage: of the device that runs it.
  std::vector<double> kept;              ///< Micro-batches that each stage keeps the stash of.
  std::vector<double> limit;             ///< Bytes that each stage may have; infinite: all.
  std::vector<double> fixed_before;      ///< Bytes of weights and what goes with them, of the layers before; one more than layers.
  std::vector<double> received;          ///< Bytes that a stage beginning with each layer gets from before, a micro-batch.
  std::vector<double> kept_output;       ///< Bytes of its stash that each layer keeps when it is recomputed.
  double micro_batches = 1;
  bool has_flush = true;              ///< The measure is what comes before a stage and its own; else its own alone.
  std::vector<bool> given_recompute;  ///< Layers that are to be recomputed whatever they need; empty: to be chosen.
  bool only_memory = false;           ///< Any time will do.

  int num_stages() const { return static_cast<int>(costs.size()); }
  int num_layers() const { return costs.front()->num_layers(); }
};

struct Cut {
  std::vector<int> first_layer;
  std::vector<bool> recompute;  ///< One a layer.
  double measure = 0;
};

/// What one stage costs.
struct StageChoice {
  double seconds = 0;  ///< Of a micro-batch, recompute inside; infinite: it does not fit.
  double bytes = 0;
  std::vector<int> recomputed;
};
StageChoice choose_stage(const CutProblem& problem, int stage, int first, int end, bool name_layers);

/// The cut with the least measure, of those whose stages fit; nullopt: none was found.
std::optional<Cut> best_cut(const CutProblem& problem);
/// The cheapest recompute for a given cut; nullopt where a stage does not fit.
std::optional<Cut> with_recompute(const CutProblem& problem, const std::vector<int>& first_layer);

/// Equal numbers of layers, and equal seconds.
std::vector<int> equal_layers(int num_layers, int num_stages);
std::vector<int> equal_seconds(const LayerCosts& costs, int num_stages);

}  // namespace cohort
