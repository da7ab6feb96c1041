#pragma once
// Measurements whose ranks are forked: rank 0 is another process, and what it measured must come back.

#include <functional>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/base/text/json_fwd.h"
#include "cohort/comm/group.h"
#include "cohort/pipeline/pipeline_runner.h"
#include "cohort/schedule/simulate.h"
#include "cohort/world/world.h"

namespace cohort {

/// Runs `measure` in `num_ranks` forked ranks with one compute thread each and returns what rank 0 returned. The calling process must have
/// one thread. Error with the code of the rank that failed first and no text: its message is on stderr.
COHORT_PROGRAM_API Json measure_in_ranks(int num_ranks, const std::string& backend,
                                         const std::function<Json(const World& world, Group& group)>& measure);

// Times steps of a pipeline on all its ranks at once.

/// One thread; every rank of `group` makes the same calls. References must outlive it. The ranks must be on one host, whose clock they
/// share.
class COHORT_PROGRAM_API PipelineMeter {
 public:
  PipelineMeter(PipelineRunner& pipeline, Group group);
  ~PipelineMeter();
  PipelineMeter(const PipelineMeter&) = delete;

  /// Times one step, which is to run the pipeline once: from a moment when all ranks are there to the end of the last one.
  void step(const std::function<void()>& run);

  struct Result {
    double step_seconds = 0;  ///< Median.
    double bubble = 0;        ///< Median: idle time / (ranks x time from the first action to the last); sends count as busy.
    Timeline last;            ///< The last step as it went, waits left out; seconds from its first action.
  };
  /// Collective; the same on every rank.
  Result result();

 private:
  struct Span {
    double start = 0, end = 0, busy = 0;
  };

  PipelineRunner& pipeline_;
  Group group_;
  std::vector<TimedAction> actions_;  // Of the last step.
  std::vector<double> step_seconds_;
  std::vector<Span> spans_;  // One a step.
};

}  // namespace cohort
