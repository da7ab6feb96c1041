#pragma once
// What steps of a rank were: the lanes of trace.json, and sums over the steps between two exchanges.

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/record/step_records.h"
#include "cohort/runlog/run_trace.h"
#include "cohort/schedule/simulate.h"

namespace cohort {

// What a rank did in its last steps, and when: the measured lanes of trace.json.

/// One a rank; every rank records every step. One thread.
class StepTrace {
 public:
  static constexpr size_t kKept = 15;         ///< Steps; of them the one with the median time is shown.
  static constexpr size_t kMostSpans = 2048;  ///< Of a step; what comes later is not kept.

  void begin_step(int64_t number);
  /// Seconds of the steady clock.
  void span(const char* name, double start, double end);
  /// Where the pipeline records what it does (PipelineRunner::record()); null once a step has more than kMostSpans.
  std::vector<TimedAction>* actions();
  void end_step(double step_seconds);

  struct Result {
    int64_t step = 0;  ///< From 1; 0: none was recorded.
    TraceLanes lanes;
  };
  /// Collective. The step that rank 0 took the median time for, on all ranks: seconds from the moment that it began on its host, whose
  /// ranks share a clock. All ranks get it.
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

// What the steps between two exchanges add up to, where workers train by themselves (sync=local:H, diloco:H): no message tells of a single
// one of them, so they are told of together, by the line of the step that the exchange follows.

/// Of one rank; one thread.
class LocalRound {
 public:
  /// Of one step: the mean loss over this worker's samples, and how many it and all workers had.
  void add_loss(double loss, int64_t own_samples, int64_t all_samples);
  double loss_sum() const { return loss_sum_; }  ///< Over this worker's samples.
  int64_t all_samples() const { return all_samples_; }
  /// The same step, when it has ended.
  void add(const StepRecord& step);

  struct Total {
    StepRecord mean;  ///< Of the times of the steps; all else is that of the last one. The loss is the caller's.
    int64_t num_steps = 0, own_samples = 0;
  };
  /// All since the last call.
  Total take();

 private:
  double loss_sum_ = 0;
  int64_t own_samples_ = 0, all_samples_ = 0, num_steps_ = 0;
  StepRecord sum_;
};

}  // namespace cohort
