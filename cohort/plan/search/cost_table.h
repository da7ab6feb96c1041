#pragma once
// Seconds and bytes of the layers under a choice of precision, tensor degree and samples of a piece, as forecast_step() counts them, with
// the sums that bounds and cuts are made from. Internal to this folder.

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "cohort/plan/cost/step_forecast.h"

namespace cohort {

struct LayerCosts {
  struct Layer {
    double forward = 0, backward_input = 0, backward_weight = 0;  ///< Seconds, exchanges of tp inside.
    double all() const { return forward + backward_input + backward_weight; }
  };
  std::vector<Layer> layers;
  std::vector<double> seconds_before;          ///< Of all parts of the layers before, one more than layers.
  std::vector<int64_t> stash_before;           ///< Likewise.
  std::vector<int64_t> stash, output;          ///< Bytes.
  std::vector<double> path_whole, path_split;  ///< See cost_table.cpp; one a layer.
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

  /// On one kind of device.
  const LayerCosts& on_device(const std::string& precision, int tp, int64_t micro_batch, int kind);
  /// The least of each number over several kinds: what no mixture of them is below.
  const LayerCosts& least(const std::string& precision, int tp, int64_t micro_batch, const std::vector<int>& kinds);
  /// Forgets all tables where they have become many; references to them end then.
  void trim();

 private:
  using Key = std::tuple<std::string, int, int64_t, std::vector<int>>;
  const LayerCosts& find(const std::string& precision, int tp, int64_t micro_batch, const std::vector<int>& kinds, bool for_bound);
  std::unique_ptr<LayerCosts> make(const Key& key, bool for_bound) const;

  const PlanProblem& problem_;
  std::map<Key, std::unique_ptr<LayerCosts>> tables_[2];
};

}  // namespace cohort
