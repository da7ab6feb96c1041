#pragma once
// The time of a schedule with known times of its parts, event by event in dependency order. Torch-free.

#include <functional>
#include <string>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/schedule/schedule.h"

namespace cohort {

/// Seconds (or any unit) of one micro-batch.
struct StageCosts {
  std::vector<double> forward, backward_input, backward_weight;  ///< One per stage. A whole backward takes both parts.
  /// From stage `from` to stage `to`, forward or backward; the sender does not wait. Empty: 0.
  std::function<double(int from, int to)> transfer;
  double send = 0;     ///< Processor time of the sender per message,
  double receive = 0;  ///< and of the receiver.
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
  std::vector<double> busy;                     ///< One per rank.
  std::vector<int> peak_stash;                  ///< One per rank, see ScheduleFacts.
  std::vector<std::vector<TimedAction>> ranks;  ///< Compute actions (and transfers with processor time).
};

/// Adds transfers where the schedule has none. Error(kBadInput) for an invalid schedule or invalid costs.
COHORT_API Timeline simulate(const Schedule& schedule, const StageCosts& costs);

/// A text chart with a row per rank.
COHORT_API std::string timeline_text(const Timeline& timeline, int columns = 120);
COHORT_API std::string timeline_svg(const Timeline& timeline);
COHORT_API Json timeline_trace(const Timeline& timeline);  ///< Chrome trace events; Perfetto opens them.
/// The category of an action in a trace, by which viewers colour it: "forward", "send".
COHORT_API const char* trace_category(const Action& action);

}  // namespace cohort
