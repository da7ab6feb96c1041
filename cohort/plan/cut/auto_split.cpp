#include "cohort/plan/cut/auto_split.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "cohort/base/fail.h"
#include "cohort/plan/cost/pipeline_forecast.h"
#include "cohort/schedule/stage_graph.h"

namespace cohort {

Split auto_split(const Profile& profile, const Layout& layout, const SplitOptions& options, const std::vector<int>& worker_of_stage) {
  const Split best = best_split(profile, options);
  const auto with = [&](const std::vector<int>& first_layer) {
    return given_split(profile, options, {first_layer.begin() + 1, first_layer.end()});
  };
  const auto seconds = [&](const std::vector<int>& first_layer) {
    const bool fits = options.memory_bytes == 0 || most_memory_bytes(with(first_layer), options.num_ranks) <= options.memory_bytes;
    if (!fits) return std::numeric_limits<double>::infinity();
    return forecast_step_seconds(profile, layout, {stage_of_layers(first_layer, profile.layers.size()), worker_of_stage}, {});
  };
  const std::vector<int> found =
      improve_split(static_cast<int>(profile.layers.size()), {best.first_layer, even_split(profile, options).first_layer}, seconds);
  return found == best.first_layer ? best : with(found);
}

// The cut with the least time of a step, as told by a function that simulates the schedule.
//
// Least time of the busiest rank, which split.h looks for, is what counts where each rank has one stage. Where it has several, cuts with
// equal sums differ: a rank whose first stage is tiny lets the others start early, but holds all up when its large stage comes last. Only
// the schedule knows.
//
// Up to kMostCuts cuts: all are tried. Else a descent from each start: of all moves of one boundary by one or two layers the best, as long
// as it gains. Cost: kMostCuts simulations, or 4 x stages x steps of the descent.
namespace {

constexpr double kMostCuts = 500;
constexpr int kMostDescents = 200;

bool is_cut(const std::vector<int>& first_layer, int num_layers) {
  return !first_layer.empty() && first_layer.front() == 0 && first_layer.back() < num_layers &&
         std::is_sorted(first_layer.begin(), first_layer.end(), std::less_equal<>());
}

struct Best {
  std::vector<int> first_layer;
  double seconds = 0;

  bool take(const std::vector<int>& cut, const StepSeconds& seconds_of) {
    const double its = seconds_of(cut);
    if (!first_layer.empty() && !(its < seconds)) return false;
    first_layer = cut, seconds = its;
    return true;
  }
};

void descend(int num_layers, const std::vector<int>& start, const StepSeconds& seconds, Best& best) {
  Best here;
  here.take(start, seconds);
  for (int descent = 0; descent < kMostDescents; ++descent) {
    const std::vector<int> from = here.first_layer;
    bool gained = false;
    for (size_t stage = 1; stage < from.size(); ++stage)
      for (const int by : {-1, 1, -2, 2}) {
        std::vector<int> moved = from;
        moved[stage] += by;
        if (is_cut(moved, num_layers)) gained |= here.take(moved, seconds);
      }
    if (!gained) break;
  }
  if (best.first_layer.empty() || here.seconds < best.seconds) best = here;
}

}  // namespace

std::vector<int> improve_split(int num_layers, const std::vector<std::vector<int>>& starts, const StepSeconds& seconds) {
  if (starts.empty()) fail(ErrorCode::kBadInput, "improve_split: no cut to start from");
  for (const std::vector<int>& start : starts)
    if (!is_cut(start, num_layers) || start.size() != starts.front().size())
      fail(ErrorCode::kBadInput, "improve_split: a start is no cut of ", num_layers, " layers into ", starts.front().size(), " stages");
  Best best;
  if (num_cuts(num_layers, static_cast<int>(starts.front().size())) > kMostCuts) {
    for (const std::vector<int>& start : starts) descend(num_layers, start, seconds, best);
    return best.first_layer;
  }
  for (const std::vector<int>& start : starts) best.take(start, seconds);
  std::vector<int> cut(starts.front().size());
  std::iota(cut.begin(), cut.end(), 0);
  do best.take(cut, seconds);
  while (next_cut(cut, num_layers));
  return best.first_layer;
}

}  // namespace cohort
