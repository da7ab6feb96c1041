#pragma once
// How many workers are worth having: steps(batch) x seconds of a step(batch, workers).

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/study/analysis/fits.h"
#include "cohort/study/analysis/steps_to_result.h"

namespace cohort::study {

struct StepTime {
  int64_t batch_size = 0;
  int num_workers = 1;
  double seconds = 0;        ///< Median of a step.
  double low = 0, high = 0;  ///< Quartiles of the measured steps.
};

struct WorthCell {
  int64_t batch_size = 0;
  int num_workers = 1;
  double steps = 0, step_seconds = 0;
  double seconds = 0, seconds_low = 0, seconds_high = 0;  ///< Time to the goal; its interval combines those of steps and step time.
};
struct WorthRow {
  int num_workers = 1;
  WorthCell best;        ///< The fastest batch size on that number of workers.
  double speed_up = 1;   ///< Relative to the best of one worker (or of the fewest measured).
  double next_gain = 0;  ///< 1 - time with the next number of workers / this time; 0 for the last.
};
struct Worth {
  std::vector<WorthCell> cells;  ///< All measured (batch size that reached the goal, workers), sorted by both.
  std::vector<WorthRow> rows;    ///< In increasing order of workers; empty where nothing was measured.
  /// The largest number that still saves at least `least_gain` of the time per doubling, compared with the previous number that did.
  int num_worth_having = 1;
};
/// Error(kBadInput) for step times that are not positive.
Worth worth_of_workers(const std::vector<StepsToResult>& steps, const std::vector<StepTime>& times, double least_gain = 0.1);

/// CSV files that a study's report writes and the planner reads: docs/formats/steps_curve.md. Writing replaces a file atomically; reading
/// gives Error(kBadInput) with file, line and problem.
void write_steps_curve(const std::string& path, const Analysis& analysis);
/// Rows in increasing order of batch sizes. `goal` receives the goal as GoalSpec::text().
std::vector<StepsToResult> read_steps_curve(const std::string& path, std::string* goal = nullptr);
void write_step_times(const std::string& path, const std::vector<StepTime>& times);
std::vector<StepTime> read_step_times(const std::string& path);

}  // namespace cohort::study
