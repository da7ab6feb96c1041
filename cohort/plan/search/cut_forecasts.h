#pragma once
// One layout's best cuts and recomputed layers, chosen together by estimates and then forecast; and the plans that the search has met.
// Internal to this folder.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cohort/plan/search/combination_bound.h"
#include "cohort/plan/search/joint_search.h"
#include "cohort/plan/search/search_space.h"

namespace cohort {

/// The input of best_cut(). Stages are runs of the layers, in order.
struct CutProblem {
  std::vector<const LayerCosts*> costs;  ///< One a stage: of the device that runs it.
  std::vector<double> kept;              ///< Micro-batches whose stash each stage keeps.
  std::vector<double> limit;             ///< Memory limit of each stage in bytes; infinite: none.
  std::vector<double> fixed_before;      ///< Prefix sums of the bytes of weights, gradients and optimizer.
  std::vector<double> received;          ///< Bytes per micro-batch that a stage beginning with each layer receives.
  std::vector<double> kept_output;       ///< Bytes of its stash that each layer keeps when recomputed.
  double micro_batches = 1;
  bool has_flush = true;              ///< The measure includes the time before a stage.
  std::vector<bool> given_recompute;  ///< Layers that must be recomputed; empty: choose them.
  bool only_memory = false;           ///< Ignore time.

  int num_stages() const { return static_cast<int>(costs.size()); }
  int num_layers() const { return costs.front()->num_layers(); }
};

struct Cut {
  std::vector<int> first_layer;
  std::vector<bool> recompute;  ///< One a layer.
  double measure = 0;
};

/// Cost of one stage.
struct StageChoice {
  double seconds = 0;  ///< Per micro-batch, with recompute; infinite: it does not fit.
  double bytes = 0;
  std::vector<int> recomputed;
};
StageChoice choose_stage(const CutProblem& problem, int stage, int first, int end, bool name_layers);

/// The cut with the least measure among those whose stages fit; nullopt where none was found.
std::optional<Cut> best_cut(const CutProblem& problem);
/// The cheapest recompute for a given cut; nullopt where a stage does not fit.
std::optional<Cut> with_recompute(const CutProblem& problem, const std::vector<int>& first_layer);

/// First layers of stages of about equal seconds.
std::vector<int> equal_seconds(const LayerCosts& costs, int num_stages);

class PlanPool {
 public:
  explicit PlanPool(Objective objective) : objective_(objective) {}

  /// Adds a plan that fits; the first of equals stays. Returns whether it is now the best.
  bool add(const RankedPlan& plan);
  bool empty() const { return best_.empty(); }
  /// Infinite where there is none.
  double best_objective() const;
  const RankedPlan& best() const { return best_.front(); }
  std::vector<RankedPlan> runners_up(int count) const;
  const std::vector<RankedPlan>& front() const { return front_; }

 private:
  Objective objective_;
  std::vector<RankedPlan> best_;   ///< Best first, no two alike but for their cut.
  std::vector<RankedPlan> front_;  ///< Rising time, falling memory.
};

/// A key of degrees, ZeRO, schedule, precision, compression, batch and recompute; plans with the same key are alike.
std::string kind_of(const RankedPlan& plan);

// Forecasts.

class CutForecasts {
 public:
  /// All references must outlive the object. `is_over` is asked before every forecast.
  CutForecasts(const SearchSpace& space, CostTable& costs, PlanPool& pool, std::function<bool()> is_over)
      : space_(space), problem_(space.request().problem), costs_(costs), pool_(pool), is_over_(std::move(is_over)) {}

  struct Outcome {
    bool is_exact = false;  ///< No cut and no recomputed set is faster; false where not all were tried.
    double best = 0;        ///< Objective; infinite where nothing fits.
  };
  /// Forecasts the cuts that are likely to be best.
  Outcome by_search(const Combination& combination);
  /// Forecasts all cuts with all recomputed sets; nullopt where they are too many or time is up.
  std::optional<Outcome> by_trying_all(const Combination& combination);
  /// Forecasts the cut with the least memory.
  void by_memory(const Combination& combination);
  /// Descent from the best plan's cut: boundaries move, recomputed layers are dropped or replaced by others.
  void improve(const RankedPlan& start, const Combination& combination, double most_work);

  /// Forecasts the plan as it is.
  void consider(const Candidate& candidate, const GoalSteps& point);

  /// Forecasts made, in simulated actions.
  double work() const { return work_; }
  double work_of(const Combination& combination) const;
  /// The plan with the least peak memory of all forecasts, whether it fits or not.
  const std::optional<RankedPlan>& least_memory() const { return least_memory_; }

 private:
  struct Setting;
  Setting setting_of(const Combination& combination);
  std::optional<RankedPlan> forecast(const Candidate& candidate, const GoalSteps& point);
  std::optional<RankedPlan> forecast_cut(const Setting& setting, const Cut& cut);
  void adapt(Setting& setting, const Cut& cut, const RankedPlan& plan) const;
  bool keep(const std::optional<RankedPlan>& plan, double& best);

  void by_least_memory(Setting& setting, double& best);
  bool has_given_cut(int stages) const;
  /// The cut that `split` of the request names; empty where it does not have that many stages.
  std::vector<int> given_cut(int stages) const;

  const SearchSpace& space_;
  PlanProblem problem_;  ///< The request's, with the batch that is looked at.
  CostTable& costs_;
  PlanPool& pool_;
  std::function<bool()> is_over_;
  double work_ = 0;
  std::optional<RankedPlan> least_memory_;
};

// Plans outside the class covered by the bounds.

/// Forecasts some plans whose stages are not runs of layers, or have different numbers of replicas (branch_plans.cpp), and adds those that
/// fit to the pool. Does nothing where given keys of the layout rule such plans out.
void forecast_branches_and_replicas(const SearchSpace& space, const std::string& precision, const GoalSteps& point,
                                    CutForecasts& evaluation, const std::function<bool()>& is_over);

// The error where nothing fits.

/// The plan with the least peak of memory that a search of at most `seconds` finds, whether it fits or not.
using LeastMemory = std::function<std::optional<RankedPlan>(const SearchRequest& request, double seconds)>;

/// One line: the constraint, the least memory and the least number of devices that would do. `least`: of the request itself.
std::string why_infeasible(const SearchRequest& request, const RankedPlan& least, const LeastMemory& search);

}  // namespace cohort
