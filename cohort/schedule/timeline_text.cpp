// The chart of the terminal: a row a rank, time from left to right. A letter says what is done (F forward, B whole backward, I its input
// part, W its weight part, s and r sending and receiving; lower case f b i w for the second, fourth, ... stage of a rank), the number is
// the micro-batch, dots are idle time.
#include <algorithm>
#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/schedule/timeline_chart.h"

namespace cohort {
namespace {

/// Equal actions get equal widths where that fits: all times multiples of the shortest, and that at least one column wide.
double columns_per_unit(const Timeline& timeline, int columns) {
  double shortest = timeline.makespan;
  for (const auto& rank : timeline.ranks)
    for (const TimedAction& timed : rank)
      if (timed.end > timed.start) shortest = std::min(shortest, timed.end - timed.start);
  const double share = columns / timeline.makespan, whole = std::floor(share * shortest + 1e-9);
  const auto is_multiple = [&](double time) { return std::abs(time / shortest - std::round(time / shortest)) < 1e-6; };
  for (const auto& rank : timeline.ranks)
    for (const TimedAction& timed : rank)
      if (!is_multiple(timed.start) || !is_multiple(timed.end)) return share;
  return whole >= 1 ? whole / shortest : share;
}

char letter(const Action& action, bool odd) {
  static const char kUpper[] = "FBIWsrsr", kLower[] = "fbiwsrsr";
  return (odd ? kLower : kUpper)[static_cast<size_t>(action.kind)];
}

}  // namespace

std::vector<int> chart_parts(const std::vector<TimedAction>& rank) {
  std::vector<int> stages;
  for (const TimedAction& timed : rank) stages.push_back(timed.action.stage);
  std::sort(stages.begin(), stages.end());
  stages.erase(std::unique(stages.begin(), stages.end()), stages.end());
  return stages;
}

int chart_part(const std::vector<int>& stages, int stage) {
  return static_cast<int>(std::lower_bound(stages.begin(), stages.end(), stage) - stages.begin());
}

std::string timeline_text(const Timeline& timeline, int columns) {
  std::string out;
  const size_t label_width = std::to_string(std::max<size_t>(1, timeline.ranks.size()) - 1).size();
  const double start = chart_start(timeline), scale = timeline.makespan > 0 ? columns_per_unit(timeline, std::max(1, columns)) : 0;
  const auto column = [&](double time) { return static_cast<size_t>(std::lround((time - start) * scale)); };
  for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    std::string row(column(start + timeline.makespan), '.');
    const std::vector<int> stages = chart_parts(timeline.ranks[rank]);
    for (const TimedAction& timed : timeline.ranks[rank]) {
      const size_t from = column(timed.start), to = column(timed.end);
      if (from >= to) continue;  // Too short to be seen.
      std::string cell = concat(letter(timed.action, chart_part(stages, timed.action.stage) % 2 == 1), timed.action.micro_batch);
      if (cell.size() > to - from) cell.resize(1);
      cell.resize(to - from, '-');
      row.replace(from, to - from, cell);
    }
    const std::string label = std::to_string(rank);
    out += "rank " + std::string(label_width - label.size(), ' ') + label + " |" + row + "|\n";
  }
  return out;
}

}  // namespace cohort
