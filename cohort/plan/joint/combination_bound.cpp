// Lower bounds of forecast_step(), for all cuts into stages and all sets of recomputed layers. Recomputing only adds to a backward, and
// transfers, exchanges of gradients and updates only add to the end, so bounds count the layers' own parts (exchanges of tp inside).
// Without pipeline workers a step is accumulate times all layers. With them, of a step of m micro-batches on p workers:
//
//   area      every worker does its stages m times, one after the other: the makespan is at least the mean, m C / p, C = all layers.
//   path      one micro-batch passes a path of layers forward and back, in whatever stages they are, one after the other.
//   layer     the worker that has the largest layer runs it m times.
//   flush     (one stage a worker) before a stage [i, j) starts, a path of layers to layer i has done its forwards, and after the last
//             backward of the stage it does its backwards: at least P(i) + m (C(j) - C(i)) where P(i) is the longest path to i of both.
//             Where backward is divided, the weight parts of the path may be done later and those of the stage, too: the larger of the
//             path's forwards and inputs around the stage's forwards and inputs, and the path's forwards before all of the stage. The least
//             T for which p stages cover all layers, stage k + 1 beginning no later than R(end of stage k), R(x) = the furthest that any
//             stage beginning at or before x gets within T: by induction no cut within T gets further. Bisection on T.
//
// The first three hold for any acyclic placement of layers on workers; flush for stages that are runs of the layers, which are the cuts
// that the search makes. Degrees alone: area with the least seconds a sample; seconds of a layer are linear between sizes that were
// measured, so seconds / samples is monotone there and the least is at one of their ends.
//
// Cost: area, path, layer: O(1) a layout. Flush: 40 L, once for each (precision, tp, pp, micro-batches, samples).

#include "cohort/plan/joint/combination_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace cohort {
namespace {

constexpr double kRounding = 1 - 1e-11;  // Sums in another order than the forecast's.

bool splits_backward(const std::string& schedule) { return schedule.starts_with("zb"); }

}  // namespace

double BoundTable::least_seconds_a_sample(const Degrees& degrees) {
  const PlanProblem& problem = space_.request().problem;
  const std::vector<int> kinds = space_.kinds(degrees.dp * degrees.tp * degrees.pp);
  const auto [found, is_new] = a_sample_.try_emplace({degrees.precision, degrees.tp, kinds.size()}, 0.0);
  if (!is_new) return found->second;
  int64_t most = 1;
  for (const StepsPoint& point : space_.batches()) most = std::max(most, point.batch_size);
  std::vector<double> least(static_cast<size_t>(space_.num_layers()), std::numeric_limits<double>::infinity());
  for (const int kind : kinds) {
    ProfileKey key{problem.cluster.devices[static_cast<size_t>(kind)].name, space_.precisions()[static_cast<size_t>(degrees.precision)],
                   degrees.tp, 1};
    std::set<int64_t> sizes = {1, most};
    for (const int64_t size : measured_micro_batches(problem.profile, key)) sizes.insert(size);
    for (const int64_t size : sizes) {
      key.micro_batch = size;
      const Profile profile = profile_at(problem.profile, key);
      for (size_t i = 0; i < least.size(); ++i) {
        const LayerProfile& layer = profile.layers[i];
        const double seconds = layer.forward_seconds + layer.backward_input_seconds + layer.backward_weight_seconds;
        least[i] = std::min(least[i], seconds / static_cast<double>(size));
      }
    }
  }
  for (const double seconds : least) found->second += seconds;
  return found->second;
}

TimeBound BoundTable::of_degrees(const Degrees& degrees) {
  const double samples = std::ceil(static_cast<double>(space_.batches()[static_cast<size_t>(degrees.batch)].batch_size) / degrees.dp);
  const bool may_share = degrees.pp == 1 && degrees.tp == 1;  // Then the mean over the replicas is what holds.
  const double share =
      may_share ? static_cast<double>(space_.batches()[static_cast<size_t>(degrees.batch)].batch_size) / degrees.dp : samples;
  return {share * least_seconds_a_sample(degrees) / degrees.pp * kRounding, "area"};
}

double BoundTable::flush_bound(const LayerCosts& costs, int64_t micro_batch, const Degrees& degrees, int micro_batches, bool is_split) {
  const size_t kinds = space_.kinds(degrees.dp * degrees.tp * degrees.pp).size();
  const auto [found, is_new] =
      flush_.try_emplace({degrees.precision, degrees.tp, degrees.pp, micro_batches, micro_batch, kinds, is_split}, 0.0);
  if (!is_new) return found->second;
  const int n = costs.num_layers();
  const double m = micro_batches;
  std::vector<double> weight_free_before(static_cast<size_t>(n) + 1, 0);
  for (int i = 0; i < n; ++i) {
    const LayerCosts::Layer& layer = costs.layers[static_cast<size_t>(i)];
    weight_free_before[static_cast<size_t>(i) + 1] = weight_free_before[static_cast<size_t>(i)] + layer.forward + layer.backward_input;
  }
  const auto covers = [&](double limit) {
    int furthest = 0;
    for (int stage = 0, begin = 0; stage < degrees.pp; ++stage) {
      // All beginnings up to the furthest end count; each layer is tried as one once.
      const int last = furthest;
      for (; begin <= last && begin < n; ++begin) {
        const double path = is_split ? costs.path_split[static_cast<size_t>(begin)] : costs.path_whole[static_cast<size_t>(begin)];
        if (path > limit) continue;
        const std::vector<double>& before = is_split ? weight_free_before : costs.seconds_before;
        const double most = before[static_cast<size_t>(begin)] + (limit - path) / m;
        auto end = std::upper_bound(before.begin() + begin, before.end(), most) - before.begin() - 1;
        if (is_split) {  // All parts of the stage are within the limit, too.
          const double all = costs.seconds_before[static_cast<size_t>(begin)] + limit / m;
          end = std::min(end, std::upper_bound(costs.seconds_before.begin() + begin, costs.seconds_before.end(), all) -
                                  costs.seconds_before.begin() - 1);
        }
        furthest = std::max(furthest, static_cast<int>(end));
      }
      if (furthest >= n) return true;
    }
    return false;
  };
  double low = m * costs.seconds() / degrees.pp, high = m * costs.seconds() + costs.longest_whole;
  for (int step = 0; step < 40 && high - low > 1e-9 * high; ++step) {
    const double middle = 0.5 * (low + high);
    (covers(middle) ? high : low) = middle;
  }
  return found->second = low;  // Nothing covers within `low`, or it is the area.
}

TimeBound BoundTable::of_combination(const Combination& combination) {
  const Degrees& degrees = combination.degrees;
  const std::vector<int> kinds = space_.kinds(degrees.dp * degrees.tp * degrees.pp);
  TimeBound bound = of_degrees(degrees);
  if (combination.has_shares || space_.is_given("shares")) return bound;  // Ranks have pieces of several sizes.
  const LayerCosts& costs =
      costs_.least(space_.precisions()[static_cast<size_t>(degrees.precision)], degrees.tp, combination.micro_batch, kinds);
  const double times = combination.accumulate;
  const auto raise = [&](double seconds, const char* by) {
    if (times * seconds * kRounding > bound.seconds) bound = {times * seconds * kRounding, by};
  };
  if (degrees.pp == 1) {
    raise(costs.seconds(), "area");
    return bound;
  }
  const std::string& schedule = space_.schedules()[static_cast<size_t>(combination.schedule)];
  const bool is_split = splits_backward(schedule);
  raise(combination.micro_batches * costs.seconds() / degrees.pp, "area");
  raise(is_split ? costs.longest_split : costs.longest_whole, "critical path");
  raise(combination.micro_batches * costs.largest, "largest layer");
  if (space_.stages_per_worker(combination) == 1)
    raise(flush_bound(costs, combination.micro_batch, degrees, combination.micro_batches, is_split), "cut with flush");
  return bound;
}

double BoundTable::memory_bytes(const Combination&) { return 0; }

double BoundTable::estimate_bytes(const Combination& combination) {
  const PlanProblem& problem = space_.request().problem;
  const Degrees& degrees = combination.degrees;
  const double dp = degrees.dp, trained = 4.0 * static_cast<double>(problem.profile.num_trained()) / degrees.tp / degrees.pp;
  const double held = trained * ((combination.zero == 3 ? 1 / dp : 1) + (combination.zero >= 2 ? 1 / dp : 1) +
                                 problem.optimizer_arrays * (combination.zero >= 1 ? 1 / dp : 1));
  const LayerCosts& costs = costs_.least(space_.precisions()[static_cast<size_t>(degrees.precision)], degrees.tp, combination.micro_batch,
                                         space_.kinds(degrees.dp * degrees.tp * degrees.pp));
  int64_t largest = 0, outputs = 0;
  for (size_t i = 0; i < costs.stash.size(); ++i) largest = std::max(largest, costs.stash[i]), outputs += costs.output[i];
  const double kept = degrees.pp == 1 ? 1 : std::min(combination.micro_batches, degrees.pp);
  return held + static_cast<double>(largest) + kept * static_cast<double>(outputs) / degrees.pp;
}

double BoundTable::estimate(const Combination& combination) {
  const PlanProblem& problem = space_.request().problem;
  const Degrees& degrees = combination.degrees;
  const int ranks = degrees.dp * degrees.tp * degrees.pp;
  double work = 0, largest = 0;
  for (const int kind : space_.kinds(ranks)) {
    const LayerCosts& costs =
        costs_.on_device(space_.precisions()[static_cast<size_t>(degrees.precision)], degrees.tp, combination.micro_batch, kind);
    work = std::max(work, costs.seconds());
    largest = std::max(largest, costs.largest);
  }
  double seconds = work * combination.accumulate;
  const double p = degrees.pp, m = combination.micro_batches;
  if (degrees.pp > 1) {
    const std::string& schedule = space_.schedules()[static_cast<size_t>(combination.schedule)];
    const double chunks = splits_backward(schedule) ? 3.0 * space_.stages_per_worker(combination) : space_.stages_per_worker(combination);
    seconds = combination.accumulate * std::max(m * work / p + (p - 1) * work / p / chunks, m * largest);
  }
  if (degrees.dp > 1) {
    const double bytes = 4.0 * static_cast<double>(problem.profile.num_trained()) / p / degrees.tp;
    const bool leaves = problem.cluster.hosts.front().devices_per_host < ranks;
    const double exchange = exchange_seconds(problem.cluster, Exchange::kAllReduce, degrees.dp, leaves, bytes);
    seconds += degrees.pp > 1 ? exchange : std::max(0.0, exchange - 0.5 * work);
    if (combination.zero == 3) seconds += 0.5 * exchange;
  }
  return seconds;
}

}  // namespace cohort
