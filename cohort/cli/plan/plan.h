#pragma once
// The parts of `cohort plan`, one file each. Internal to this folder, but for profiles that `cohort train` takes too.

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cohort/cli/options/verb.h"
#include "cohort/data/source/source.h"
#include "cohort/plan/plan.h"
#include "cohort/plan/search/search_machines.h"
#include "cohort/plan/time_to_goal.h"
#include "cohort/record/advice_records.h"
#include "cohort/study/goal_curve.h"

namespace cohort {

// This machine, measured: what is planned for without --cluster.

/// The model of --model on the data of --data, with 1, 2, 4, ... and --workers ranks (left out: a rank a core, 8 at most). What was
/// measured is kept where --profile names a file, and taken from there the next time; Error(kBadInput) where that is of something else.
ModelProfile profile_of_this_machine(const Arguments& arguments);

/// Of those that the profile was measured on, with at most `most_workers` (0: any number); the first where none is so small.
const Cluster& largest_machine(const ModelProfile& profile, int most_workers);
/// What a measurement of this machine that is to be kept in a file is of.
struct KeptMeasurement {
  int workers = 1;  ///< At most: 1, 2, 4, ... and these.
  std::vector<std::string> precisions;
  std::string path;  ///< "": it is not kept.
};
/// Measures config's model on `data`, and writes the profile.
ModelProfile measure_and_keep(const Config& config, const DataSet& data, const KeptMeasurement& what);
/// Error(kBadInput) where the profile of --profile `path` says that it was measured for another model, data or size of samples than
/// config's.
void check_measured_source(const ModelProfile& profile, const Config& config, const std::string& path);

/// What forecasts for this machine were off by, as --calibration says; nothing with --cluster. Error(kBadInput) for both.
ForecastIntervals kept_intervals_of(const Arguments& arguments, const ModelProfile& profile);

/// What the best plan of each number of workers is worth; none where there is one number.
std::vector<std::string> machine_sentences(const MachineAnswer& found);

// The time to a goal: --study DIR and --steps-curve FILE.

/// With --study: model, data, optimizer, context and precision as the study had them, as if they had been given; batch and threads too.
/// Error(kBadInput) where something that was given contradicts it. Without: as they are.
Arguments with_study(const Arguments& given);

/// Of --study or --steps-curve; nothing without. Error(kBadInput) beside another objective or a batch that is given.
std::optional<study::GoalCurve> curve_of(const Arguments& arguments);

/// Searches for the time to the goal: `plan` gets request, answer and goal; its reasons begin with what is said of the goal.
void plan_to_goal(const study::GoalCurve& curve, bool has_cluster, int most_workers,
                  const std::function<void(const SearchProgress&)>& progress, const std::atomic<bool>* stop, Plan& plan);

// Which way of waiting for one another suits the workers of a plan.

/// None where the plan is not of several whole replicas, whose gradients travel as they are.
std::optional<SyncAdviceRecord> sync_of(const Plan& plan);

// Ways out of too little memory: plan/ladder.h on standard output.

/// Where nothing of `request` fits, or --ladder asked for it: as text behind `title`, or as a line of JSON. Ctrl-C ends it with what there
/// is. Returns whether any way out fits.
bool print_ladder(const Arguments& arguments, const SearchRequest& request, const std::string& title);

/// The same where a plan failed: what is wrong with the ladder itself is not said.
void print_ladder_after(const Arguments& arguments, const SearchRequest& request, const std::string& title);

/// After a plan: where the same search without a limit of memory finds one that is at least kTight times as fast, says so, with the ladder.
void print_ladder_if_tight(const Arguments& arguments, const Plan& plan);

/// What `cohort plan --ladder` reads but for --ladder itself is fine; Error(kBadInput) for options that would do nothing beside it.
void check_ladder_arguments(const Arguments& arguments);

// --instance FILE and --find-batch.

/// Prints the answer as a table, or as one JSON line under --json. Error(kBadInput) for options that are for a profile and a cluster.
int plan_instance(const Arguments& arguments);

int plan_batch(const Arguments& arguments);

}  // namespace cohort
