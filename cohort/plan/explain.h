#pragma once
// Explains a plan: what each worker holds, why it was chosen, what would change it. Torch-free.

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cohort/base/text/json_fwd.h"
#include "cohort/plan/search/joint_search.h"

namespace cohort {

/// Plans closer than this cannot be told apart, because repeated measurements of one plan differ by as much
/// (docs/algorithms/joint_search.md).
inline constexpr double kNoiseFloor = 0.04;

/// The reasons for the plan: where its slowest worker spends the time, what limits its memory, how far it may be from the best; and why
/// each runner-up lost or ties.
std::vector<std::string> reasons_of(const SearchRequest& request, const PlanAnswer& answer);

/// Why `other` lost against the best, or that it ties: it is within kNoiseFloor, or the intervals overlap.
std::string why_not(const SearchRequest& request, const PlanAnswer& answer, const RankedPlan& other);

/// The effect of a change of the cluster.
struct WhatIf {
  std::string change;    ///< "links between hosts at 10 Gbit/s"
  bool feasible = true;  ///< Whether any plan fits.
  RankedPlan best;       ///< The best plan on the changed cluster.
  double gain = 0;       ///< Share of the objective that the change saves; negative: costs.
  std::string sentence;  ///< "links between hosts at 10 Gbit/s: dp=8 instead, 2.3 s a step, 12 % slower"
};
/// Searches again: links between hosts (or inside of the one) at 10 Gbit/s, at half and twice their rate, memory with 2 GiB more and twice
/// as much, half and twice the devices. Each takes at most `seconds`. Ends early at `stop` (null: none) and drops the unfinished search;
/// `look` is called regularly and may set it.
std::vector<WhatIf> what_if(const SearchRequest& request, const PlanAnswer& answer, double seconds, const std::atomic<bool>* stop,
                            const std::function<void()>& look = {});
/// The value of a GiB of memory per device and of a link twice as fast, in per cent of the objective.
std::vector<std::string> shadow_prices(const std::vector<WhatIf>& answers);

/// Share of a step that each worker computes.
struct Utilisation {
  std::vector<double> naive;    ///< The same cut with one micro-batch, so that one worker computes at a time.
  std::vector<double> planned;  ///< One per worker of the pipeline, compute only.
  double naive_step_seconds = 0;
};
/// Empty lists where the plan has one worker on the pipeline axis.
Utilisation utilisation_of(const SearchRequest& request, const RankedPlan& plan);

/// A line of a table: all cells but the last are aligned to the right within `widths`.
std::string table_row(const std::vector<size_t>& widths, const std::vector<std::string>& cells);
/// The table: the layout, its forecast, and a row for each worker.
std::string plan_table(const SearchRequest& request, const PlanAnswer& answer);
/// The value of an objective: "12.3 ms", "4.5 GiB", "0.12 ms a sample".
std::string objective_text(Objective objective, double value);

// The cost of equal shares of the batch on devices of different speed, compared with the shares of a plan.

struct UnevenForecast {
  std::vector<double> shares;  ///< One per rank; they add up to 1.
  double step_seconds = 0, waste = 0;
  double equal_step_seconds = 0, equal_waste = 0;  ///< With equal shares and everything else as in the plan.
};

/// The share of the ranks' time that is waiting for the slowest to compute, in a step of `step_seconds`; one of `compute_seconds` per rank.
double waiting_share(const std::vector<double>& compute_seconds, double step_seconds);

/// Nothing unless the plan is dp only, over several kinds of device. Waste is waiting_share().
std::optional<UnevenForecast> uneven_forecast(const PlanProblem& problem, const RankedPlan& plan);

std::string sentence_of(const UnevenForecast& uneven);
/// Why machines with more workers than the chosen one are slower, where their workers differ in speed.
std::vector<std::string> larger_machine_sentences(const MachineAnswer& found);
Json to_json(const UnevenForecast& uneven);

}  // namespace cohort
