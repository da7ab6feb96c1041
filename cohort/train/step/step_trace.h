#pragma once
// What a rank did in its last steps, and when: the measured lanes of trace.json.

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/runlog/run_trace.h"
#include "cohort/schedule/simulate.h"

namespace cohort {

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

}  // namespace cohort
