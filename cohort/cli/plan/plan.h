#pragma once
// The parts of `cohort plan`, one file each. Internal to the command line: `cohort train` takes profiles too.

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cohort/cli/options/verb.h"
#include "cohort/data/source/source.h"
#include "cohort/plan/plan.h"
#include "cohort/plan/search/joint_search.h"
#include "cohort/plan/time_to_goal.h"
#include "cohort/study/goal_curve.h"

namespace cohort {

// Measurements of this machine, for which is planned without --cluster.

/// Measures the model of --model on the data of --data with 1, 2, 4, ... and --workers ranks (default: one for each core, at most 8). With
/// --profile the result is kept in that file and read from it the next time; Error(kBadInput) if it is of another model or data.
ModelProfile profile_of_this_machine(const Arguments& arguments);

/// The largest machine that the profile was measured on with at most `most_workers` (0: any number); the first if all are larger.
const Cluster& largest_machine(const ModelProfile& profile, int most_workers);
/// A measurement of this machine that may be kept in a file.
struct KeptMeasurement {
  int workers = 1;  ///< The largest number: 1, 2, 4, ... and this one are measured.
  std::vector<std::string> precisions;
  std::string path;  ///< "" for a measurement that is not kept.
};
/// Measures the model of `config` on `data`, and writes the profile.
ModelProfile measure_and_keep(const Config& config, const DataSet& data, const KeptMeasurement& what);
/// Error(kBadInput) if the profile of --profile `path` was measured for another model, data or size of samples than those of `config`.
void check_measured_source(const ModelProfile& profile, const Config& config, const std::string& path);

/// Intervals from the errors of earlier forecasts for this machine (--calibration); empty with --cluster. Error(kBadInput) for both
/// options.
ForecastIntervals kept_intervals_for(const Arguments& arguments, const ModelProfile& profile);

/// A sentence with the best plan for each number of workers; none if there is one number only.
std::vector<std::string> machine_sentences(const MachineAnswer& found);

// The time to a goal: --study DIR and --steps-curve FILE.

/// With --study the arguments with the study's model, data, optimizer, context, precision, batch and threads, as if they had been given;
/// without it the arguments themselves. Error(kBadInput) for a given option that contradicts the study.
Arguments with_study(const Arguments& given);

/// The curve of --study or --steps-curve, if one was given. Error(kBadInput) with another objective, or a given batch.
std::optional<study::GoalCurve> goal_curve_from(const Arguments& arguments);

/// Searches for the least time to the goal. Fills request, answer and goal of `plan`, and its reasons with sentences on the goal.
void plan_to_goal(const study::GoalCurve& curve, bool has_cluster, int most_workers,
                  const std::function<void(const SearchProgress&)>& progress, const std::atomic<bool>* stop, Plan& plan);

// Fallbacks for too little memory: prints the ladder of plan/ladder.h.

/// Prints the ladder as text after `title`, or as a line of JSON, if nothing of `request` fits or --ladder was given. Ctrl-C ends it with
/// what has been found. Returns whether any fallback fits.
bool print_ladder(const Arguments& arguments, const SearchRequest& request, const std::string& title);

/// print_ladder() after a plan that failed; errors of the ladder itself are ignored.
void print_ladder_after(const Arguments& arguments, const SearchRequest& request, const std::string& title);

/// After a plan: if the same search without a limit of memory finds one at least kTight times as fast, prints that, and the ladder.
void print_ladder_if_tight(const Arguments& arguments, const Plan& plan);

/// Error(kBadInput) for options that would have no effect with --ladder.
void check_ladder_arguments(const Arguments& arguments);

// --instance FILE and --find-batch.

/// Prints the answer for --instance as a table, or as one JSON line. Error(kBadInput) for options of a profile and a cluster.
int plan_instance(const Arguments& arguments);
/// Prints what --find-batch found.
int plan_batch(const Arguments& arguments);

}  // namespace cohort
