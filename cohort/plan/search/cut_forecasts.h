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

/// First layers of stages of about equal seconds.
std::vector<int> equal_seconds(const LayerCosts& costs, int num_stages);

// Forecasts.

class CutForecasts {
 public:
  /// All must outlive it. `is_over`: time is up, asked before every forecast.
  CutForecasts(const SearchSpace& space, CostTable& costs, PlanPool& pool, std::function<bool()> is_over)
      : space_(space), problem_(space.request().problem), costs_(costs), pool_(pool), is_over_(std::move(is_over)) {}

  struct Outcome {
    bool is_exact = false;  ///< No cut and no recompute has less time; false where not all were tried.
    double best = 0;        ///< Objective; infinite where nothing fits.
  };
  /// The cuts that are likely to be best, by forecast.
  Outcome by_search(const Combination& combination);
  /// All cuts with all recomputed sets; false where they are too many or time was up.
  std::optional<Outcome> by_trying_all(const Combination& combination);
  /// Least memory.
  void by_memory(const Combination& combination);
  /// Descent from the best plan's cut: boundaries move, layers stop being recomputed, or others are in their place.
  void improve(const RankedPlan& start, const Combination& combination, double most_work);

  /// A plan as it is.
  void consider(const Candidate& candidate, const GoalSteps& point);

  /// Forecasts made, in simulated actions.
  double work() const { return work_; }
  double work_of(const Combination& combination) const;
  /// Of all plans that were forecast, fitting or not, the one with the least peak of memory.
  const std::optional<RankedPlan>& least_memory() const { return least_memory_; }

 private:
  struct Setting;
  Setting setting_of(const Combination& combination);
  std::optional<RankedPlan> forecast(const Candidate& candidate, const GoalSteps& point);
  std::optional<RankedPlan> forecast_cut(const Setting& setting, const Cut& cut);
  void adapt(Setting& setting, const Cut& cut, const RankedPlan& plan) const;
  bool keep(const std::optional<RankedPlan>& plan, double& best);

  void by_least_memory(Setting& setting, double& best);
  /// What `split` of the request says; empty where it is not for that many stages.
  std::vector<int> given_cut(int stages) const;

  const SearchSpace& space_;
  PlanProblem problem_;  ///< The request's, with the batch that is looked at.
  CostTable& costs_;
  PlanPool& pool_;
  std::function<bool()> is_over_;
  double work_ = 0;
  std::optional<RankedPlan> least_memory_;
};

// Plans out of the class that the bounds are for. Internal to this folder.

/// Forecasts some plans whose stages are no runs of layers, or whose stages have different numbers of replicas (irregular.cpp); those that
/// fit go to the evaluation's pool. Where keys of the layout are given that these would have to break, none.
void try_irregular(const SearchSpace& space, const std::string& precision, const GoalSteps& point, CutForecasts& evaluation,
                   const std::function<bool()>& is_over);

class PlanPool {
 public:
  explicit PlanPool(Objective objective) : objective_(objective) {}

  /// A plan that fits; of equals the first stays. Returns whether it is the best now.
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

/// What plans differ in that are not alike: degrees, ZeRO, schedule, precision, compression, batch and recompute.
std::string kind_of(const RankedPlan& plan);

// What to say where nothing fits. Internal to this folder.

/// The plan with the least peak of memory that a search of at most `seconds` finds, whether it fits or not.
using LeastMemory = std::function<std::optional<RankedPlan>(const SearchRequest& request, double seconds)>;

/// One line: the constraint, the least memory and the least number of devices that would do. `least`: of the request itself.
std::string why_infeasible(const SearchRequest& request, const RankedPlan& least, const LeastMemory& search);

}  // namespace cohort
