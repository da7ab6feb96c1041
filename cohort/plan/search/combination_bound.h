#pragma once
// What no cut and no recompute make a layout faster than. Internal to this folder.

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "cohort/plan/search/cost_table.h"
#include "cohort/plan/search/search_space.h"

namespace cohort {

struct TimeBound {
  double seconds = 0;
  const char* by = "";
};

class BoundTable {
 public:
  /// Both must outlive it.
  BoundTable(const SearchSpace& space, CostTable& costs);

  /// Of all layouts with these degrees.
  TimeBound of_degrees(const Degrees& degrees);
  /// Of all cuts and recomputed sets of one layout; without the flush it is cheaper, and lower.
  TimeBound of_combination(const Combination& combination, bool with_flush);
  /// Bytes of a rank that no cut and no recompute go below.
  double memory_bytes(const Combination& combination) const;
  /// What an even cut with no exchanges would take: for the order of the search, no bound.
  double estimate(const Combination& combination);
  double estimate(const Degrees& degrees);
  /// Bytes of a rank when as much as possible is recomputed: likewise.
  double estimate_bytes(const Combination& combination);
  double estimate_bytes(const Degrees& degrees);

 private:
  double held_bytes(const Combination& combination) const;
  double exchange_estimate(const Degrees& degrees, double computing_seconds, int zero) const;
  double after_pipeline(const Degrees& degrees, int zero, double forward_seconds, double backward_seconds, int passes) const;
  bool is_too_large(const Combination& combination) const;
  double most_memory(int num_ranks) const;
  int64_t trained_bytes(int tp) const;
  double least_seconds_a_sample(const Degrees& degrees);
  double flush_bound(const LayerCosts& costs, int64_t micro_batch, const Degrees& degrees, int micro_batches, bool is_split);

  const SearchSpace& space_;
  CostTable& costs_;
  double num_trained_;
  std::map<int, int64_t> trained_bytes_;                                           // Of a rank that has all layers, by tp.
  std::map<std::tuple<int, int, size_t>, double> a_sample_;                        // By precision, tp, kinds.
  std::map<std::tuple<int, int, int, int, int64_t, size_t, bool>, double> flush_;  // And pp, micro-batches, samples, split.
};

}  // namespace cohort
