#pragma once
// The search for the best layout: cuts, replicas, tensor degrees, schedules, micro-batches, ZeRO, recompute, precision and compression
// together, with a proven lower bound. Torch-free; the steps are in joint_search.cpp.

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
  int num_workers = 0;                       ///< Upper limit; 0: all devices of the cluster.
  int least_workers = 1;                     ///< Layouts with fewer ranks are not searched.
  std::map<std::string, std::string> fixed;  ///< Given keys of the layout, as --layout writes them; also precision and accumulate.
  bool may_compress = false;                 ///< Gradients may be rounded where that is worth at least 5 %.
  int64_t num_samples = 0;                   ///< Size of the training data, an upper limit of the batch. 0: unknown.
  int num_runners_up = 5;
  double search_seconds = 10;       ///< At most.
  bool says_what_would_fit = true;  ///< Where nothing fits, search some seconds for the memory and the devices that would.

  /// num_workers, or all devices of the cluster.
  int most_workers() const { return num_workers > 0 ? num_workers : problem.cluster.num_devices(); }
};

struct RankedPlan {
  Candidate candidate;
  int64_t global_batch = 0;
  StepForecast forecast;
  double objective = 0;      ///< Smaller is better: seconds of a step, seconds a sample, bytes, seconds to the goal.
  double low = 0, high = 0;  ///< 90 % prediction interval.
};

struct PlanAnswer {
  RankedPlan best;
  std::vector<RankedPlan> runners_up;  ///< Best first; each differs in a degree, ZeRO, schedule, precision or recompute from all before.
  std::vector<RankedPlan> front;       ///< No other plan has less time and less memory; rising time.
  double lower_bound = 0;              ///< Proven lower bound of the objective.
  std::string bound_by;                ///< The relaxation that gave the bound.
  bool optimal = false;                ///< The plan is at the bound, to 1e-9 of it, or everything was tried.
  bool is_complete = false;            ///< The search was not cut short by its time or by `stop`.
  int64_t num_layouts = 0;             ///< Combinations of degrees, ZeRO, schedule, ... considered, most of them by their bound alone.
  int64_t num_refused = 0;             ///< Layouts excluded by the table of refusals.
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

/// The least number above `fails` for which `holds` is true, found by doubling `fails` up to six times and bisection; nullopt: none.
std::optional<int> least_number(int fails, const std::function<bool(int)>& holds);

// The search over several machines, such as this host with one rank on all cores, with two ranks on half of the cores each, ...

struct MachineAnswer {
  SearchRequest request;  ///< The request with the chosen machine as its cluster.
  PlanAnswer answer;      ///< Its bound is the least over all machines.
  struct Tried {
    SearchRequest request;           ///< The request with this machine.
    std::optional<RankedPlan> plan;  ///< Empty where nothing fits; `why` says so.
    std::string why = {};
  };
  std::vector<Tried> tried;  ///< One a machine, in their order.
};

/// Searches the machines `request.problem.profile.measured_on` with at most `most_workers` devices (0: all), each for its share of
/// search_seconds and only for layouts with more ranks than the next smaller machine has. Errors are those of search_plan() where nothing
/// fits on any machine, and kBadInput where no machine is left.
MachineAnswer search_machines(const SearchRequest& request, int most_workers, const std::function<void(const SearchProgress&)>& progress,
                              const std::atomic<bool>* stop);

}  // namespace cohort
