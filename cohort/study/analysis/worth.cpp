// How many workers are worth having. A cell is the time to the goal of one batch size on one number of workers: steps to result times the
// median seconds of a data-parallel step. Only measured pairs make a cell, never a value of a fitted law: at the knee, where it matters
// most, fits disagree most.
//
// Intervals. Steps and step times are measured apart, so their relative deviations are treated as independent: the upper end is
// S T exp(sqrt(ln(S_high / S)^2 + ln(T_high / T)^2)), the lower end likewise. S's ends are 95 % of the law of the minimum over
// trials, T's are quartiles of single steps, wider than the error of their median: the interval is conservative. An infinite end stays
// infinite; an unknown end counts as no deviation.
//
// Worth having. In increasing order, each number of workers is compared with the last one found worth having; it is worth having where the
// time falls by at least `least_gain` per doubling, 1 - (time / time before)^(1 / log2(workers / workers before)). So steps from 1 to 2 and
// from 10 to 11 are measured alike (perfect scaling saves 0.5 in both), and a number that divides the batch badly does not end the search.
#include "cohort/study/analysis/worth.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "cohort/base/fail.h"
#include "cohort/base/statistics.h"

namespace cohort::study {
namespace {

WorthCell cell_of(const StepsToResult& result, const StepTime& time) {
  WorthCell cell{.batch_size = time.batch_size, .num_workers = time.num_workers, .steps = 0, .step_seconds = time.seconds};
  cell.steps = static_cast<double>(*result.steps);
  const Estimate seconds = product({cell.steps, result.low.value_or(0), result.high.value_or(0)}, {time.seconds, time.low, time.high});
  cell.seconds = seconds.value, cell.seconds_low = seconds.low, cell.seconds_high = seconds.high;
  return cell;
}

int num_worth_having(const std::vector<WorthRow>& rows, double least_gain) {
  const WorthRow* last = &rows.front();
  for (const WorthRow& row : rows) {
    if (row.num_workers == last->num_workers) continue;
    const double doublings = std::log2(static_cast<double>(row.num_workers) / last->num_workers);
    if (1 - std::pow(row.best.seconds / last->best.seconds, 1 / doublings) >= least_gain) last = &row;
  }
  return last->num_workers;
}

}  // namespace

Worth worth_of_workers(const std::vector<StepsToResult>& steps, const std::vector<StepTime>& times, double least_gain) {
  Worth worth;
  for (const StepTime& time : times) {
    if (!(time.seconds > 0) || !std::isfinite(time.seconds) || time.num_workers < 1)
      fail(ErrorCode::kBadInput, "a step of batch ", time.batch_size, " on ", time.num_workers, " workers takes ", time.seconds,
           " seconds: invalid step time");
    for (const StepsToResult& result : steps)
      if (result.batch_size == time.batch_size && result.steps.value_or(0) > 0) worth.cells.push_back(cell_of(result, time));
  }
  std::sort(worth.cells.begin(), worth.cells.end(), [](const WorthCell& a, const WorthCell& b) {
    return std::pair(a.batch_size, a.num_workers) < std::pair(b.batch_size, b.num_workers);
  });
  std::map<int, WorthCell> best;
  for (const WorthCell& cell : worth.cells) {  // Batch sizes rise, so ties go to the smaller one.
    const auto [found, is_new] = best.try_emplace(cell.num_workers, cell);
    if (!is_new && cell.seconds < found->second.seconds) found->second = cell;
  }
  for (const auto& [num_workers, cell] : best) {
    if (!worth.rows.empty()) worth.rows.back().next_gain = 1 - cell.seconds / worth.rows.back().best.seconds;
    const double first = worth.rows.empty() ? cell.seconds : worth.rows.front().best.seconds;
    worth.rows.push_back({.num_workers = num_workers, .best = cell, .speed_up = first / cell.seconds});
  }
  if (!worth.rows.empty()) worth.num_worth_having = num_worth_having(worth.rows, least_gain);
  return worth;
}

}  // namespace cohort::study
