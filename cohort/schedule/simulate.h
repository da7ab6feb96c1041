#pragma once
// How long a schedule takes when its parts are known: event by event, in exact dependency order. Torch-free.

#include <functional>
#include <string>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/schedule/schedule.h"

namespace cohort {

/// Seconds (or any unit) of one micro-batch.
struct StageCosts {
  std::vector<double> forward, backward_input, backward_weight;  ///< One a stage. A whole backward takes both parts.
  /// From stage `from` to stage `to`, forward or backward; the sender does not wait. Empty: 0.
  std::function<double(int from, int to)> transfer;
  double send = 0;     ///< What the sender's own processor spends on a message,
  double receive = 0;  ///< and the receiver's.
};

/// Error(kBadInput) unless there is one finite time of at least 0 for each part of each stage.
COHORT_API void check_costs(const StageCosts& costs, int num_stages);

struct TimedAction {
  Action action;
  double start = 0, end = 0;
};

struct Timeline {
  double makespan = 0;                          ///< From the first start to the last end.
  double bubble = 0;                            ///< Idle time / (ranks x makespan); time in transfers on a processor counts as busy.
  std::vector<double> busy;                     ///< One a rank.
  std::vector<int> peak_stash;                  ///< One a rank, see ScheduleFacts.
  std::vector<std::vector<TimedAction>> ranks;  ///< Compute actions (and transfers that cost the processor something).
};

/// Adds transfers where the schedule has none. Error(kBadInput) for a schedule that is none or costs that do not fit.
COHORT_API Timeline simulate(const Schedule& schedule, const StageCosts& costs);

/// The chart: one row a rank.
COHORT_API std::string timeline_text(const Timeline& timeline, int columns = 120);
COHORT_API std::string timeline_svg(const Timeline& timeline);
COHORT_API Json timeline_trace(const Timeline& timeline);  ///< Chrome trace events; Perfetto opens them.
/// Their category of an action, by which viewers colour it: "forward", "send".
COHORT_API const char* trace_category(const Action& action);

}  // namespace cohort
