#pragma once
// Seconds and bytes of the layers under a choice of precision, tensor degree and samples per micro-batch, as forecast_step() counts them,
// and the lower bounds that follow for every cut and every recomputed set. Internal to this folder.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "cohort/plan/search/search_space.h"

namespace cohort {

struct LayerCosts {
  struct Layer {
    double forward = 0, backward_input = 0, backward_weight = 0;  ///< Seconds, exchanges of tp inside.
    double all() const { return forward + backward_input + backward_weight; }
  };
  std::vector<Layer> layers;
  std::vector<double> seconds_before;          ///< Prefix sums of all parts of the layers.
  std::vector<int64_t> stash_before;           ///< Prefix sums.
  std::vector<int64_t> stash, output;          ///< Bytes.
  std::vector<double> path_whole, path_split;  ///< One a layer: combination_bound.cpp.
  double longest_whole = 0, longest_split = 0;
  double largest = 0;  ///< Seconds of the largest layer.
  double forward_seconds = 0;
  int64_t largest_stash = 0, all_outputs = 0;

  double seconds() const { return seconds_before.back(); }
  int num_layers() const { return static_cast<int>(layers.size()); }
};

class CostTable {
 public:
  /// `problem` must outlive the table.
  explicit CostTable(const PlanProblem& problem) : problem_(problem) {}

  /// Costs on one kind of device.
  const LayerCosts& on_device(const std::string& precision, int tp, int64_t micro_batch, int kind);
  /// The minimum of each number over several kinds, a bound for any mixture of them.
  const LayerCosts& least(const std::string& precision, int tp, int64_t micro_batch, const std::vector<int>& kinds);
  /// Drops all tables when there are many; references to them become invalid.
  void trim();

 private:
  using Key = std::tuple<std::string, int, int64_t, std::vector<int>>;
  const LayerCosts& find(const std::string& precision, int tp, int64_t micro_batch, const std::vector<int>& kinds, bool for_bound);
  std::unique_ptr<LayerCosts> make(const Key& key, bool for_bound) const;

  const PlanProblem& problem_;
  std::map<Key, std::unique_ptr<LayerCosts>> tables_[2];
};

struct TimeBound {
  double seconds = 0;
  const char* by = "";
};

class BoundTable {
 public:
  /// Both must outlive it.
  BoundTable(const SearchSpace& space, CostTable& costs);

  /// Bound of all layouts with these degrees.
  TimeBound of_degrees(const Degrees& degrees);
  /// Bound of all cuts and recomputed sets of one layout; without the flush it is cheaper and lower.
  TimeBound of_combination(const Combination& combination, bool with_flush);
  /// Lower bound of the bytes of a rank, for all cuts and recomputed sets.
  double memory_bytes(const Combination& combination) const;
  /// The time of an even cut without exchanges: an estimate for the order of the search, not a bound.
  double estimate(const Combination& combination);
  double estimate(const Degrees& degrees);
  /// Estimated bytes of a rank when as much as possible is recomputed.
  double estimate_bytes(const Combination& combination);
  double estimate_bytes(const Degrees& degrees);

 private:
  double held_bytes(const Combination& combination) const;
  double exchange_estimate(const Degrees& degrees, double computing_seconds, int zero) const;
  double after_pipeline(const Degrees& degrees, int zero, double forward_seconds, double backward_seconds, int passes) const;
  double most_memory(int num_ranks) const;
  int64_t trained_bytes(int tp) const;
  double least_seconds_a_sample(const Degrees& degrees);
  double flush_bound(const LayerCosts& costs, int64_t micro_batch, const Degrees& degrees, int micro_batches, bool is_split);

  const SearchSpace& space_;
  CostTable& costs_;
  double num_trained_;
  std::map<int, int64_t> trained_bytes_;                                           // Of a rank with all layers, keyed by tp.
  std::map<std::tuple<int, int, size_t>, double> a_sample_;                        // Keyed by precision, tp, kinds.
  std::map<std::tuple<int, int, int, int, int64_t, size_t, bool>, double> flush_;  // Also by pp, micro-batches, samples, split.
};

}  // namespace cohort
