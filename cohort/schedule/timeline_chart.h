#pragma once
// What the charts of a timeline share. Internal to this room.

#include <algorithm>
#include <vector>

#include "cohort/schedule/simulate.h"

namespace cohort {

/// The stages that one rank runs, in order, and the place of one among them: charts tell them apart by letter case or shade.
std::vector<int> chart_parts(const std::vector<TimedAction>& rank);
int chart_part(const std::vector<int>& stages, int stage);

/// When the first action begins.
inline double chart_start(const Timeline& timeline) {
  bool found = false;
  double start = 0;
  for (const auto& rank : timeline.ranks)
    if (!rank.empty()) start = found ? std::min(start, rank.front().start) : rank.front().start, found = true;
  return start;
}

}  // namespace cohort
