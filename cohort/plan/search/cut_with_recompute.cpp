// The cut with the least measure under a limit of memory, recompute inside, by a threshold search.
//
//   1. A stage [i, j) needs fixed bytes + micro-batches kept x (stash + received). Where that is over its limit, layers are recomputed in
//      the order of seconds for each byte that it saves, until it fits (the largest recomputed stash comes back once, for the layer that
//      runs again). This is the order of the fractional knapsack: at most one layer more than the cheapest set has.
//   2. Limit T: each stage in turn takes as many layers as it can within T: m x seconds, after what the stages before it take (flush), or
//      seconds alone. More layers never cost less, so the end is found by galloping and bisection; and a stage that begins later never
//      ends earlier, so taking all is best.
//   3. The least T with which the stages cover all layers: bisection.
//
// Cost: 40 T's x stages x log(layers of a stage), times the layers of a stage where it has to recompute. The measure is that of the bound
// (combination_bound.h), so where nothing is recomputed and transfers are free it is at the bound.

#include "cohort/plan/search/cut_forecasts.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace cohort {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

double seconds_of(const CutProblem& problem, int stage, int first, int end) {
  return choose_stage(problem, stage, first, end, false).seconds;
}

/// The furthest end within `limit`, at most `last`; `first` where not even one layer is.
int reach(const CutProblem& problem, int stage, int first, int last, double limit) {
  const auto is_within = [&](int end) {
    const double seconds = seconds_of(problem, stage, first, end);
    return problem.only_memory ? seconds < kInfinite : seconds <= limit;
  };
  if (!is_within(first + 1)) return first;
  int within = first + 1, step = 1;
  while (within < last && is_within(std::min(last, within + step))) {
    within = std::min(last, within + step);
    step *= 2;
  }
  int beyond = std::min(last + 1, within + step);
  while (beyond - within > 1) {
    const int middle = (within + beyond) / 2;
    (is_within(middle) ? within : beyond) = middle;
  }
  return within;
}

/// First layers of the stages; empty where they do not cover all layers within `limit`.
std::vector<int> cover(const CutProblem& problem, double limit) {
  const int n = problem.num_layers(), stages = problem.num_stages();
  std::vector<int> first_layer;
  double before = 0;
  for (int stage = 0, first = 0; stage < stages; ++stage) {
    first_layer.push_back(first);
    const int last = n - (stages - stage - 1);
    const double most = problem.has_flush ? (limit - before) / problem.micro_batches : limit;
    const int end = reach(problem, stage, first, last, most);
    if (end == first || (stage == stages - 1 && end < n)) return {};
    before += seconds_of(problem, stage, first, end);
    first = end;
  }
  return first_layer;
}

}  // namespace

StageChoice choose_stage(const CutProblem& problem, int stage, int first, int end, bool name_layers) {
  const LayerCosts& costs = *problem.costs[static_cast<size_t>(stage)];
  const auto at = [](int i) { return static_cast<size_t>(i); };
  const double kept = problem.kept[at(stage)], limit = problem.limit[at(stage)];
  StageChoice out;
  out.seconds = costs.seconds_before[at(end)] - costs.seconds_before[at(first)];
  out.bytes = problem.fixed_before[at(end)] - problem.fixed_before[at(first)] +
              kept * (static_cast<double>(costs.stash_before[at(end)] - costs.stash_before[at(first)]) + problem.received[at(first)]);
  const auto saved = [&](int layer) { return kept * (static_cast<double>(costs.stash[at(layer)]) - problem.kept_output[at(layer)]); };
  double largest = 0;
  const auto recompute = [&](int layer) {
    out.seconds += costs.layers[at(layer)].forward;
    out.bytes -= saved(layer);
    largest = std::max(largest, static_cast<double>(costs.stash[at(layer)]));
    if (name_layers) out.recomputed.push_back(layer);
  };
  if (!problem.given_recompute.empty()) {
    for (int layer = first; layer < end; ++layer)
      if (problem.given_recompute[at(layer)]) recompute(layer);
  } else if (out.bytes > limit) {
    std::vector<int> order;
    for (int layer = first; layer < end; ++layer)
      if (saved(layer) > 0) order.push_back(layer);
    const auto price = [&](int layer) { return costs.layers[at(layer)].forward / saved(layer); };
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return price(a) < price(b); });
    for (const int layer : order) {
      if (out.bytes + largest <= limit) break;
      recompute(layer);
    }
  }
  out.bytes += largest;
  if (out.bytes > limit) out.seconds = kInfinite;
  return out;
}

std::optional<Cut> with_recompute(const CutProblem& problem, const std::vector<int>& first_layer) {
  Cut cut{.first_layer = first_layer, .recompute = std::vector<bool>(static_cast<size_t>(problem.num_layers()), false)};
  double before = 0;
  for (int stage = 0; stage < problem.num_stages(); ++stage) {
    const auto at = static_cast<size_t>(stage);
    const int end = stage + 1 < problem.num_stages() ? first_layer[at + 1] : problem.num_layers();
    const StageChoice choice = choose_stage(problem, stage, first_layer[at], end, true);
    if (std::isinf(choice.seconds)) return std::nullopt;
    for (const int layer : choice.recomputed) cut.recompute[static_cast<size_t>(layer)] = true;
    const double measure = problem.has_flush ? before + problem.micro_batches * choice.seconds : choice.seconds;
    cut.measure = std::max(cut.measure, measure);
    before += choice.seconds;
  }
  return cut;
}

std::optional<Cut> best_cut(const CutProblem& problem) {
  double low = 0, high = 0;
  for (const LayerCosts* costs : problem.costs) {
    double all = costs->seconds();
    for (const LayerCosts::Layer& layer : costs->layers) all += layer.forward;
    high = std::max(high, all);
    if (problem.costs.size() > 64) break;  // Devices are alike, or about; the next line has room.
  }
  high *= 4 * (problem.has_flush ? problem.micro_batches + 1 : 1);
  std::vector<int> best = cover(problem, high);
  if (best.empty()) return std::nullopt;
  for (int step = 0; step < 40 && !problem.only_memory && high - low > 1e-7 * high; ++step) {
    const double middle = 0.5 * (low + high);
    std::vector<int> cut = cover(problem, middle);
    if (cut.empty()) {
      low = middle;
    } else {
      high = middle;
      best = std::move(cut);
    }
  }
  return with_recompute(problem, best);
}

std::vector<int> equal_seconds(const LayerCosts& costs, int num_stages) {
  std::vector<int> first_layer = {0};
  const int n = costs.num_layers();
  for (int stage = 1; stage < num_stages; ++stage) {
    const double wanted = costs.seconds() * stage / num_stages;
    auto next =
        static_cast<int>(std::lower_bound(costs.seconds_before.begin(), costs.seconds_before.end(), wanted) - costs.seconds_before.begin());
    const auto gap = [&](int i) { return std::abs(costs.seconds_before[static_cast<size_t>(i)] - wanted); };
    if (next > 0 && gap(next - 1) < gap(next)) --next;
    first_layer.push_back(std::clamp(next, first_layer.back() + 1, n - (num_stages - stage)));
  }
  return first_layer;
}

}  // namespace cohort
