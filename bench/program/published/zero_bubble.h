#pragma once
// Schedules with a split backward for equal stages in a chain, within a limit of memory (zero_bubble.cpp).

#include <vector>

#include "cohort/schedule/schedule.h"
#include "cohort/schedule/simulate.h"

namespace cohort {

/// All stages are equal. Times of one micro-batch on one stage, in any unit.
struct ZeroBubbleSetting {
  int num_stages = 1, num_micro_batches = 1;
  double forward = 0, backward_input = 0, backward_weight = 0;  ///< Positive.
  double transfer = 0;                                          ///< Time from stage to stage, at least 0, during which no stage is busy.
  double kept_share = 1;  ///< The part of a micro-batch's activations that is kept between input part and weight part: 0 to 1.
};

struct ZeroBubblePlan {
  Schedule schedule;         ///< Compute actions.
  double longest_stage = 0;  ///< The longest time of a rank from the start of its first action to the end of its last.
  double makespan = 0;       ///< From the first start to the last end.
  double peak = 0;           ///< Most activations that a rank keeps, in those of one micro-batch.
};

/// The shortest `longest_stage` that a few dozen list schedules and repairs of them find while no stage ever keeps more than `limit`
/// activations of one micro-batch. Milliseconds for tens of stages. Error(kInfeasible) for a limit below 1.
ZeroBubblePlan search_zero_bubble(const ZeroBubbleSetting& setting, double limit);

/// A lower bound on the longest stage of schedules within the limit.
double zero_bubble_bound(const ZeroBubbleSetting& setting, double limit);

/// Any schedule on as many ranks as the setting has stages: ranks have the same number of stages, which share the setting's times.
ZeroBubblePlan timed_zero_bubble(const ZeroBubbleSetting& setting, Schedule schedule);
/// The costs with `chunks` stages on each rank.
StageCosts zero_bubble_costs(const ZeroBubbleSetting& setting, int chunks);

}  // namespace cohort
