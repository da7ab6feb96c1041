#pragma once
// The best layout of all: cuts, replicas, tensor degrees, schedules, micro-batches, ZeRO, recompute, precision and compression together,
// with a proof of what no layout is below. Torch-free; how it goes: joint_search.cpp.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cohort/plan/cost/step_forecast.h"

namespace cohort {

enum class Objective : uint8_t { kStepTime, kThroughput, kMemory, kTimeToGoal };
const std::vector<std::string>& objective_names();  ///< step-time throughput memory time-to-goal

/// Steps to the goal at one batch size.
struct GoalSteps {
  int64_t batch_size = 0;
  double steps = 0, low = 0, high = 0;
};

struct SearchRequest {
  PlanProblem problem;
  Objective objective = Objective::kStepTime;
  std::vector<GoalSteps> steps_curve;        ///< For kTimeToGoal: the batch is one of these. Rising batch sizes.
  int num_workers = 0;                       ///< At most; 0: as many as the cluster has.
  int least_workers = 1;                     ///< Layouts of fewer ranks are not looked at.
  std::map<std::string, std::string> fixed;  ///< Keys of a layout that are given, as --layout writes them; precision and accumulate too.
  bool may_compress = false;                 ///< Gradients may be rounded where that is worth at least 5 %.
  int64_t num_samples = 0;                   ///< Of the training data: no larger batch. 0: not known.
  int num_runners_up = 5;
  double search_seconds = 10;  ///< At most.
  bool says_what_would_fit =
      true;  ///< Where nothing fits: the least memory and the devices that would do are looked for, some seconds long.

  /// num_workers, or all devices of the cluster.
  int most_workers() const { return num_workers > 0 ? num_workers : problem.cluster.num_devices(); }
};

struct RankedPlan {
  Candidate candidate;
  int64_t global_batch = 0;
  StepForecast forecast;
  double objective = 0;      ///< Smaller is better: seconds of a step, seconds a sample, bytes, seconds to the goal.
  double low = 0, high = 0;  ///< Of 100 runs 90 should be between.
};

struct PlanAnswer {
  RankedPlan best;
  std::vector<RankedPlan> runners_up;  ///< Best first; each differs in a degree, ZeRO, schedule, precision or recompute from all before.
  std::vector<RankedPlan> front;       ///< No other plan has less time and less memory; rising time.
  double lower_bound = 0;              ///< Of the objective: proven.
  std::string bound_by;                ///< Which relaxation gave it.
  bool optimal = false;                ///< The plan is at the bound, to 1e-9 of it, or everything was tried.
  bool is_complete = false;            ///< The search was not cut short by its time or by `stop`.
  int64_t num_layouts = 0;             ///< Combinations of degrees, ZeRO, schedule, ...: looked at, most of them by their bound alone.
  int64_t num_refused = 0;             ///< Of them those that the table of refusals does not let through.
  double search_seconds = 0;
};

struct SearchProgress {
  double best = 0, lower_bound = 0, seconds = 0;  ///< best infinite: none yet.
  int64_t num_layouts = 0, num_done = 0;
};

/// Error(kInfeasible) where nothing fits: the constraint, and the least memory or number of devices that would do. Error(kBadInput) for a
/// request that contradicts itself. Deterministic unless time cuts it short. `stop`: ends with the best so far (null: none).
PlanAnswer search_plan(const SearchRequest& request, const std::function<void(const SearchProgress&)>& progress,
                       const std::atomic<bool>* stop);

/// search_plan(), or nothing where no plan fits or given keys contradict the request.
std::optional<PlanAnswer> search_plan_if_any(const SearchRequest& request, const std::function<void(const SearchProgress&)>& progress,
                                             const std::atomic<bool>* stop);

// The search over several machines of which one is taken: this one, with one rank that has all cores, with two that have half each, ...

struct MachineAnswer {
  SearchRequest request;  ///< With the machine that was taken as its cluster.
  PlanAnswer answer;      ///< Its bound is the least over all machines.
  struct Tried {
    SearchRequest request;           ///< With this machine.
    std::optional<RankedPlan> plan;  ///< Nothing: `why`.
    std::string why = {};
  };
  std::vector<Tried> tried;  ///< One a machine, in their order.
};

/// `request.problem.profile.measured_on` are the machines; those of more than `most_workers` devices are left out (0: none). On each
/// only layouts of more ranks than the next smaller machine has are looked at. Each gets its
/// part of search_seconds. Errors as search_plan(), where nothing fits on any; kBadInput where no machine is left.
MachineAnswer search_machines(const SearchRequest& request, int most_workers, const std::function<void(const SearchProgress&)>& progress,
                              const std::atomic<bool>* stop);

}  // namespace cohort
