#pragma once
// Which layouts the joint search looks at: degrees first, then everything else of one choice of degrees. Internal to this folder.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/plan/search/joint_search.h"

namespace cohort {

/// The most simulated actions of a forecast, and the actions of one stage with one micro-batch.
inline constexpr double kMostForecastWork = 2e5, kActionsOfAPair = 4;

/// What decides the size of the stages and of the samples on a rank: a branch of the search.
struct Degrees {
  int precision = 0;  ///< Index in the precisions of SearchSpace.
  int tp = 1, pp = 1, dp = 1;
  int batch = 0;  ///< Index in SearchSpace::batches().

  int num_ranks() const { return dp * tp * pp; }
};

/// A layout but for its cut and its recomputed layers.
struct Combination {
  Degrees degrees;
  int zero = 0;
  int schedule = 0;  ///< Index in the schedules of SearchSpace; with pp > 1.
  int order = 0;     ///< Index in the orders of SearchSpace.
  int compress = 0;  ///< Index in SearchSpace::compressions().
  int micro_batches = 1, accumulate = 1;
  bool has_shares = false;  ///< Each rank by the speed of its device.
  int64_t micro_batch = 1;  ///< Samples of the largest piece.

  bool operator==(const Combination&) const = default;
};

class SearchSpace {
 public:
  /// Error(kBadInput) for a request that contradicts itself. `request` must outlive the space.
  explicit SearchSpace(const SearchRequest& request);

  const SearchRequest& request() const { return request_; }
  int num_layers() const { return static_cast<int>(request_.problem.profile.layers.size()); }
  int most_workers() const { return most_workers_; }
  const std::vector<std::string>& compressions() const { return compressions_; }
  const std::string& precision(const Degrees& degrees) const { return precisions_[static_cast<size_t>(degrees.precision)]; }
  const std::string& schedule(const Combination& combination) const { return schedules_[static_cast<size_t>(combination.schedule)]; }
  int64_t batch_size(const Degrees& degrees) const { return batches_[static_cast<size_t>(degrees.batch)].batch_size; }
  const std::vector<GoalSteps>& batches() const { return batches_; }
  /// Kinds of device among the first `num_ranks` ranks.
  std::vector<int> kinds(int num_ranks) const;
  /// The layout of `fixed`, with defaults for the rest.
  const Layout& given() const { return given_; }
  bool is_given(const std::string& key) const { return request_.fixed.contains(key); }

  /// All choices of degrees that are on the cluster and in the profile.
  std::vector<Degrees> all_degrees() const;
  bool has_costs(const HostGroup& group, const std::string& precision, int tp) const;
  /// Whether every device can have undivided layers in this precision.
  bool has_undivided_costs(const std::string& precision) const;
  /// Why there are no degrees.
  std::string why_no_degrees() const;
  /// Why none of the degrees has a layout that can run.
  std::string why_no_layouts() const;
  /// Appends all layouts with these degrees that can run, and counts those that cannot.
  void add_combinations(const Degrees& degrees, std::vector<Combination>& out, int64_t& num_refused) const;
  /// Appends those that differ from `plain` in how gradients are rounded, mild before strong.
  void add_compressed(const Combination& plain, std::vector<Combination>& out, int64_t& num_refused) const;
  /// The candidate without stages and recomputed layers.
  Candidate candidate(const Combination& combination) const;
  /// The inverse of candidate().
  Combination combination_of(const RankedPlan& plan) const;
  /// Stages of the schedule on each worker.
  int stages_per_worker(const Combination& combination) const;

 private:
  std::vector<int> data_degrees(int64_t batch, int most) const;
  /// Whether keys are given that need several stages.
  bool asks_for_stages() const;
  bool runs(const Layout& layout, int64_t& num_refused) const;
  Layout layout_of(const Combination& combination) const;
  std::string shares_of(int num_ranks, const Degrees& degrees, int64_t micro_batch) const;

  const SearchRequest& request_;
  Layout given_;
  int most_workers_ = 1;
  std::vector<std::string> precisions_, schedules_, orders_, compressions_;
  std::vector<int> chunks_;  ///< Stages a worker, one a schedule.
  std::vector<GoalSteps> batches_;
};

}  // namespace cohort
