#pragma once
// Times of a rank's steps: the measured lanes of trace.json, and sums over the steps between two exchanges.

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/record/step_records.h"
#include "cohort/runlog/run_trace.h"
#include "cohort/schedule/simulate.h"

namespace cohort {

/// Records what a rank does in its last steps; every rank records every step. One thread.
class StepTrace {
 public:
  static constexpr size_t kKept = 15;         ///< Steps kept; the one with the median time is shown.
  static constexpr size_t kMostSpans = 2048;  ///< Kept of a step.

  void begin_step(int64_t number);
  /// Times are seconds of the steady clock.
  void span(const char* name, double start, double end);
  /// The target of PipelineRunner::record(); null once a step has more than kMostSpans.
  std::vector<TimedAction>* actions();
  void end_step(double step_seconds);

  struct Result {
    int64_t step = 0;  ///< Counted from 1; 0: none was recorded.
    TraceLanes lanes;
  };
  /// Collective. The step with rank 0's median time, as all ranks recorded it, in seconds since it began on each host, whose ranks share a
  /// clock. All ranks get the result.
  Result median_step(Group& group) const;

 private:
  struct Step {
    int64_t number = 0;
    double step_seconds = 0;
    std::vector<TraceSpan> spans;
  };
  const Step* step_of(int64_t number) const;

  Step current_;
  std::vector<TimedAction> actions_;
  std::deque<Step> steps_;
};

/// Sums of one rank over the steps between two exchanges (sync=local:H, diloco:H). Ranks agree on nothing in between, so these steps share
/// one line of metrics. One thread.
class LocalRound {
 public:
  /// The mean loss of a step over this worker's samples, and how many samples it and all workers had.
  void add_loss(double loss, int64_t own_samples, int64_t all_samples);
  double loss_sum() const { return loss_sum_; }  ///< Over this worker's samples.
  int64_t all_samples() const { return all_samples_; }
  /// Called when the step has ended.
  void add(const StepRecord& step);

  struct Total {
    StepRecord mean;  ///< Times are means; all else is that of the last step, and the loss is the caller's.
    int64_t num_steps = 0, own_samples = 0;
  };
  /// The sums since the last call.
  Total take();

 private:
  double loss_sum_ = 0;
  int64_t own_samples_ = 0, all_samples_ = 0, num_steps_ = 0;
  StepRecord sum_;
};

}  // namespace cohort
