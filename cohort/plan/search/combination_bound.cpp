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
// After the pipeline every worker exchanges gradients and updates, and one has at least the mean of the trained weights: exchange and
// update of the mean are added, over the faster link, with one copy per host where possible. Without pipeline workers the exchange may hide
// behind backwards; recompute hides no more than it takes, so the sum without recompute is the least. A layout whose weights, gradients,
// optimizer and buckets of the mean exceed the memory is excluded.
//
// The forecast extrapolates long pipelines from two short ones (step_forecast.cpp); bounds assume that a period of a steady pipeline takes
// its busiest worker's time.
//
// The first three hold for any acyclic placement of layers on workers; flush for stages that are runs of the layers, which are the cuts
// that the search makes. Degrees alone: area with the least seconds a sample; seconds of a layer are linear between sizes that were
// measured, so seconds / samples is monotone there and the least is at one of their ends.
//
// Cost: area, path, layer: O(1) a layout. Flush: 40 L, once for each (precision, tp, pp, micro-batches, samples).

#include "cohort/plan/search/combination_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "cohort/plan/cost/memory.h"
#include "cohort/plan/cost/step_forecast.h"

namespace cohort {

// Costs of layers and their sums (CostTable).
//
// Exchanges of tp: a divided layer has num_tensor_exchanges all-reduces of its output in forward and as many in backward. A table for
// bounds takes the faster of the two links; tp is within a host in every searched layout.
//
// Paths: a value passes from layer to layer, so before a layer starts some path of layers has done its forwards, and when it is done the
// same path has its backwards before it. path_whole[i]: the longest path to layer i, without it, of forward and whole backward (what a
// schedule with undivided backwards does before and after layer i, for one micro-batch); path_split[i]: of forward and input part alone.
//
// Cost: layers + edges a table.

namespace {

constexpr size_t kMostLayers = 2'000'000;  // Of all tables together: about 200 MB.

void add_sums(LayerCosts& costs, const std::vector<std::pair<int, int>>& edges) {
  const size_t n = costs.layers.size();
  costs.seconds_before.assign(n + 1, 0);
  costs.stash_before.assign(n + 1, 0);
  for (size_t i = 0; i < n; ++i) {
    costs.seconds_before[i + 1] = costs.seconds_before[i] + costs.layers[i].all();
    costs.stash_before[i + 1] = costs.stash_before[i] + costs.stash[i];
    costs.largest = std::max(costs.largest, costs.layers[i].all());
    costs.forward_seconds += costs.layers[i].forward;
    costs.largest_stash = std::max(costs.largest_stash, costs.stash[i]);
    costs.all_outputs += costs.output[i];
  }
  costs.path_whole.assign(n, 0);
  costs.path_split.assign(n, 0);
  std::vector<std::vector<int>> inputs(n);
  for (const auto& [from, to] : edges)
    if (from >= 0) inputs[static_cast<size_t>(to)].push_back(from);
  for (size_t i = 0; i < n; ++i) {
    for (const int input : inputs[i]) {
      const auto from = static_cast<size_t>(input);
      const LayerCosts::Layer& layer = costs.layers[from];
      costs.path_whole[i] = std::max(costs.path_whole[i], costs.path_whole[from] + layer.all());
      costs.path_split[i] = std::max(costs.path_split[i], costs.path_split[from] + layer.forward + layer.backward_input);
    }
    costs.longest_whole = std::max(costs.longest_whole, costs.path_whole[i] + costs.layers[i].all());
    costs.longest_split = std::max(costs.longest_split, costs.path_split[i] + costs.layers[i].forward + costs.layers[i].backward_input);
  }
}

}  // namespace

const LayerCosts& CostTable::on_device(const std::string& precision, int tp, int64_t micro_batch, int kind) {
  return find(precision, tp, micro_batch, {kind}, false);
}

const LayerCosts& CostTable::least(const std::string& precision, int tp, int64_t micro_batch, const std::vector<int>& kinds) {
  return find(precision, tp, micro_batch, kinds, true);
}

const LayerCosts& CostTable::find(const std::string& precision, int tp, int64_t micro_batch, const std::vector<int>& kinds,
                                  bool for_bound) {
  Key key{precision, tp, micro_batch, kinds};
  std::unique_ptr<LayerCosts>& table = tables_[for_bound ? 1 : 0][key];
  if (!table) table = make(key, for_bound);
  return *table;
}

void CostTable::trim() {
  for (auto& tables : tables_)
    if (tables.size() * problem_.profile.layers.size() > kMostLayers) tables.clear();
}

std::unique_ptr<LayerCosts> CostTable::make(const Key& key, bool for_bound) const {
  const auto& [precision, tp, micro_batch, kinds] = key;
  auto out = std::make_unique<LayerCosts>();
  for (const int kind : kinds) {
    const Profile profile =
        profile_at(problem_.profile, {problem_.cluster.devices[static_cast<size_t>(kind)].name, precision, tp, micro_batch});
    for (size_t i = 0; i < profile.layers.size(); ++i) {
      const LayerProfile& from = profile.layers[i];
      const ProfiledLayer& layer = problem_.profile.layers[i];
      double exchange = 0;
      if (tp > 1 && layer.num_tensor_exchanges > 0 && layer.tensor_parts % tp == 0) {
        const auto bytes = static_cast<double>(from.output_bytes);
        exchange = exchange_seconds(problem_.cluster, Exchange::kAllReduce, tp, false, bytes);
        if (for_bound) exchange = std::min(exchange, exchange_seconds(problem_.cluster, Exchange::kAllReduce, tp, true, bytes));
        exchange *= layer.num_tensor_exchanges;
      }
      const LayerCosts::Layer its{from.forward_seconds + exchange, from.backward_input_seconds + exchange, from.backward_weight_seconds};
      if (out->layers.size() <= i) {
        out->layers.push_back(its);
        out->stash.push_back(from.stash_bytes);
        out->output.push_back(from.output_bytes);
        continue;
      }
      LayerCosts::Layer& least = out->layers[i];
      least = {std::min(least.forward, its.forward), std::min(least.backward_input, its.backward_input),
               std::min(least.backward_weight, its.backward_weight)};
      out->stash[i] = std::min(out->stash[i], from.stash_bytes);
      out->output[i] = std::min(out->output[i], from.output_bytes);
    }
  }
  add_sums(*out, problem_.profile.edges);
  return out;
}

namespace {

constexpr double kRounding = 1 - 1e-11;  // The forecast adds in another order.
constexpr double kForever = 1e30;        // Hides any exchange.

bool splits_backward(const std::string& schedule) { return schedule.starts_with("zb"); }

}  // namespace

BoundTable::BoundTable(const SearchSpace& space, CostTable& costs)
    : space_(space), costs_(costs), num_trained_(static_cast<double>(space.request().problem.profile.num_trained())) {
  for (const ProfilePoint& point : space.request().problem.profile.points) trained_bytes_[point.tp] = trained_bytes(point.tp);
}

double BoundTable::least_seconds_a_sample(const Degrees& degrees) {
  const PlanProblem& problem = space_.request().problem;
  const std::vector<int> kinds = space_.kinds(degrees.num_ranks());
  const auto [found, is_new] = a_sample_.try_emplace({degrees.precision, degrees.tp, kinds.size()}, 0.0);
  if (!is_new) return found->second;
  int64_t most = 1;
  for (const GoalSteps& point : space_.batches()) most = std::max(most, point.batch_size);
  std::vector<double> least(static_cast<size_t>(space_.num_layers()), std::numeric_limits<double>::infinity());
  for (const int kind : kinds) {
    ProfileKey key{problem.cluster.devices[static_cast<size_t>(kind)].name, space_.precision(degrees), degrees.tp, 1};
    std::set<int64_t> sizes = {1, most};
    for (const int64_t size : measured_micro_batches(problem.profile, key)) sizes.insert(size);
    for (const int64_t size : sizes) {
      key.micro_batch = size;
      const Profile profile = profile_at(problem.profile, key);
      for (size_t i = 0; i < least.size(); ++i) {
        least[i] = std::min(least[i], profile.layers[i].seconds() / static_cast<double>(size));
      }
    }
  }
  for (const double seconds : least) found->second += seconds;
  return found->second;
}

TimeBound BoundTable::of_degrees(const Degrees& degrees) {
  const int64_t batch = space_.batch_size(degrees);
  double samples = std::ceil(static_cast<double>(batch) / degrees.dp);
  // Shares are rounded to whole samples, so the rank with at least the mean may have a third less.
  if (degrees.pp == 1 && degrees.tp == 1 && (space_.is_given("shares") || space_.kinds(degrees.dp).size() > 1))
    samples = static_cast<double>(batch) / degrees.dp * (2.0 / 3);
  double after = std::numeric_limits<double>::infinity();
  for (int zero = 0; zero <= (degrees.dp > 1 ? 3 : 0); ++zero)
    after = std::min(after, after_pipeline(degrees, zero, kForever, kForever, 1));
  return {(samples * least_seconds_a_sample(degrees) / degrees.pp + after) * kRounding, "area"};
}

double BoundTable::flush_bound(const LayerCosts& costs, int64_t micro_batch, const Degrees& degrees, int micro_batches, bool is_split) {
  const size_t kinds = space_.kinds(degrees.num_ranks()).size();
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
      // A stage may begin at any layer up to the furthest end; each is tried once.
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
  return found->second = low;  // No cut covers the layers within `low`, or it is the area.
}

TimeBound BoundTable::of_combination(const Combination& combination, bool with_flush) {
  const Degrees& degrees = combination.degrees;
  const std::vector<int> kinds = space_.kinds(degrees.num_ranks());
  TimeBound bound = of_degrees(degrees);
  if (memory_bytes(combination) > most_memory(degrees.num_ranks())) return {std::numeric_limits<double>::infinity(), "memory"};
  if (combination.has_shares || space_.is_given("shares")) return bound;  // Ranks have micro-batches of different size.
  const LayerCosts& costs = costs_.least(space_.precision(degrees), degrees.tp, combination.micro_batch, kinds);
  const double times = combination.accumulate;
  const double after = degrees.pp == 1 ? after_pipeline(degrees, combination.zero, costs.forward_seconds,
                                                        costs.seconds() - costs.forward_seconds, combination.accumulate)
                                       : after_pipeline(degrees, combination.zero, kForever, kForever, 1);
  const auto raise = [&](double seconds, const char* by) {
    const double all = (times * seconds + after) * kRounding;
    if (all > bound.seconds) bound = {all, by};
  };
  if (degrees.pp == 1) {
    raise(costs.seconds(), "area");
    return bound;
  }
  const std::string& schedule = space_.schedule(combination);
  const bool is_split = splits_backward(schedule);
  raise(combination.micro_batches * costs.seconds() / degrees.pp, "area");
  raise(is_split ? costs.longest_split : costs.longest_whole, "critical path");
  raise(combination.micro_batches * costs.largest, "largest layer");
  if (with_flush && space_.stages_per_worker(combination) == 1)
    raise(flush_bound(costs, combination.micro_batch, degrees, combination.micro_batches, is_split), "cut with flush");
  return bound;
}

int64_t BoundTable::trained_bytes(int tp) const {
  int64_t sum = 0;
  for (const ProfiledLayer& layer : space_.request().problem.profile.layers) {
    const int64_t parts = tp > 1 && layer.tensor_parts % tp == 0 ? tp : 1;
    sum += (4 * layer.num_trained + parts - 1) / parts;
  }
  return sum;
}

/// Exposed exchange and update of the worker that has at least the mean of the weights.
double BoundTable::after_pipeline(const Degrees& degrees, int zero, double forward_seconds, double backward_seconds, int passes) const {
  const PlanProblem& problem = space_.request().problem;
  const bool is_pipeline = degrees.pp > 1;
  DataExchange asked{.num_ranks = degrees.dp,
                     .zero = zero,
                     .overlaps = !is_pipeline,
                     .num_backwards = passes,
                     .num_forwards = passes,
                     .gradient_bytes = trained_bytes_.at(degrees.tp) / degrees.pp,
                     .bucket_bytes = problem.bucket_bytes,
                     .optimizer_arrays = problem.optimizer_arrays,
                     .forward_seconds = forward_seconds,
                     .backward_seconds = backward_seconds};
  asked.weight_bytes = asked.gradient_bytes;
  for (const DeviceKind& device : problem.cluster.devices) {
    if (device.memory_bytes_per_second == 0) asked.memory_bytes_per_second = std::numeric_limits<double>::infinity();
    asked.memory_bytes_per_second = std::max(asked.memory_bytes_per_second, device.memory_bytes_per_second);
  }
  // The exposed time of ZeRO 3 is not monotone in the bytes, but that of the scatter of gradients at the end is.
  if (is_pipeline && zero == 3) asked.weight_bytes = 0, asked.zero = 3;
  const bool may_round = space_.request().may_compress && zero == 0 && !is_pipeline && degrees.tp == 1;
  double least = std::numeric_limits<double>::infinity();
  for (const bool leaves : {false, true})
    for (const bool one_copy : {false, true}) {
      if (one_copy && (leaves || zero > 0 || !problem.cluster.shared_memory || problem.private_weights || degrees.dp == 1)) continue;
      asked.leaves_host = leaves, asked.one_copy = one_copy;
      const ExchangeForecast its = forecast_exchange(problem.cluster, asked);
      least = std::min(least, its.update_seconds + (may_round ? 0 : its.exposed_seconds));
    }
  return least;
}

double BoundTable::most_memory(int num_ranks) const {
  const PlanProblem& problem = space_.request().problem;
  int64_t most = 0;
  for (const int kind : space_.kinds(num_ranks)) most = std::max(most, problem.cluster.devices[static_cast<size_t>(kind)].memory_bytes);
  return static_cast<double>(problem.memory_limit_bytes > 0 ? std::min(most, problem.memory_limit_bytes) : most);
}

double BoundTable::memory_bytes(const Combination& combination) const {
  const PlanProblem& problem = space_.request().problem;
  const Degrees& degrees = combination.degrees;
  const int64_t trained = trained_bytes_.at(degrees.tp) / degrees.pp;
  double least = std::numeric_limits<double>::infinity();
  for (const bool one_copy : {false, true}) {
    if (one_copy && (combination.zero > 0 || !problem.cluster.shared_memory || problem.private_weights || degrees.dp == 1)) continue;
    const StateBytes state = strategy_memory({.zero = combination.zero,
                                              .one_copy = one_copy,
                                              .num_ranks = degrees.dp,
                                              .optimizer_arrays = problem.optimizer_arrays,
                                              .trained_bytes = trained,
                                              .largest_unit_bytes = std::min(trained, problem.bucket_bytes),
                                              .holds_gradients = degrees.pp > 1,
                                              .has_buckets = degrees.dp > 1});
    int64_t bytes = state.weights + state.gradients + state.optimizer + state.buckets;
    if (space_.precision(degrees) != "fp32") bytes += trained / 2;
    least = std::min(least, static_cast<double>(bytes));
  }
  double reserved = std::numeric_limits<double>::infinity(), overhead = reserved;
  for (const DeviceKind& device : problem.cluster.devices) {
    reserved = std::min(reserved, static_cast<double>(device.reserved_bytes));
    overhead = std::min(overhead, device.allocator_overhead);
  }
  return (least * (1 + overhead) + reserved) * kRounding;
}

double BoundTable::held_bytes(const Combination& combination) const {
  const PlanProblem& problem = space_.request().problem;
  const Degrees& degrees = combination.degrees;
  const double dp = degrees.dp, trained = 4.0 * num_trained_ / degrees.tp / degrees.pp;
  return trained * ((combination.zero == 3 ? 1 / dp : 1) + (combination.zero >= 2 ? 1 / dp : 1) +
                    problem.optimizer_arrays * (combination.zero >= 1 ? 1 / dp : 1));
}

double BoundTable::exchange_estimate(const Degrees& degrees, double computing_seconds, int zero) const {
  if (degrees.dp == 1) return 0;
  const PlanProblem& problem = space_.request().problem;
  const double bytes = 4.0 * num_trained_ / degrees.pp / degrees.tp;
  const bool leaves = problem.cluster.hosts.front().devices_per_host < degrees.num_ranks();
  const double exchange = exchange_seconds(problem.cluster, Exchange::kAllReduce, degrees.dp, leaves, bytes);
  return (degrees.pp > 1 ? exchange : std::max(0.0, exchange - 0.5 * computing_seconds)) + (zero == 3 ? 0.5 * exchange : 0);
}

double BoundTable::estimate_bytes(const Combination& combination) {
  const Degrees& degrees = combination.degrees;
  const LayerCosts& costs = costs_.least(space_.precision(degrees), degrees.tp, combination.micro_batch, space_.kinds(degrees.num_ranks()));
  const double kept = degrees.pp == 1 ? 1 : std::min(combination.micro_batches, degrees.pp);
  return memory_bytes(combination) + static_cast<double>(costs.largest_stash) + kept * static_cast<double>(costs.all_outputs) / degrees.pp;
}

double BoundTable::estimate_bytes(const Degrees& degrees) {
  Combination least{.degrees = degrees, .zero = degrees.dp > 1 ? 3 : 0};
  const int64_t batch = space_.batch_size(degrees), share = (batch + degrees.dp - 1) / degrees.dp;
  const auto pieces = static_cast<int>(std::min<int64_t>(share, 4096));
  (degrees.pp > 1 ? least.micro_batches : least.accumulate) = pieces;
  least.micro_batch = (share + pieces - 1) / pieces;
  return estimate_bytes(least);
}

double BoundTable::estimate(const Degrees& degrees) {
  const int64_t batch = space_.batch_size(degrees), share = (batch + degrees.dp - 1) / degrees.dp;
  // At most as many micro-batches as a forecast may have.
  const int64_t most = degrees.pp > 1 ? static_cast<int64_t>(kMostForecastWork / kActionsOfAPair) / degrees.pp : 4096;
  double least = std::numeric_limits<double>::infinity();
  for (const int zero : {0, 1, 3})
    for (const int64_t wanted : {int64_t{degrees.pp}, int64_t{4} * degrees.pp, share}) {
      Combination one{.degrees = degrees, .zero = zero};
      const int64_t pieces = std::max<int64_t>(1, std::min({wanted, share, int64_t{4096}, most}));
      (degrees.pp > 1 ? one.micro_batches : one.accumulate) = static_cast<int>(pieces);
      one.micro_batch = (share + pieces - 1) / pieces;
      if (zero == 0 || degrees.dp > 1) least = std::min(least, estimate(one));
    }
  return least;
}

double BoundTable::estimate(const Combination& combination) {
  const PlanProblem& problem = space_.request().problem;
  const Degrees& degrees = combination.degrees;
  double work = 0, largest = 0, limit = std::numeric_limits<double>::infinity();
  const LayerCosts* slowest = nullptr;
  for (const int kind : space_.kinds(degrees.num_ranks())) {
    const LayerCosts& costs = costs_.on_device(space_.precision(degrees), degrees.tp, combination.micro_batch, kind);
    if (costs.seconds() > work) slowest = &costs;
    work = std::max(work, costs.seconds());
    largest = std::max(largest, costs.largest);
    limit = std::min(limit, static_cast<double>(problem.cluster.devices[static_cast<size_t>(kind)].memory_bytes));
  }
  if (problem.memory_limit_bytes > 0) limit = std::min(limit, static_cast<double>(problem.memory_limit_bytes));
  const double p = degrees.pp, m = combination.micro_batches, chunks = space_.stages_per_worker(combination);
  double seconds = work, kept = 1;
  const std::string& schedule = space_.schedule(combination);
  if (degrees.pp > 1) {
    // Stages of few layers are uneven, and all wait for the largest.
    const double stages = p * chunks, layers = space_.num_layers();
    const double uneven = std::ceil(layers / stages) * stages / layers, share = work / p * (chunks > 1 ? 0.5 * (1 + uneven) : uneven);
    seconds = std::max(m * share + (p - 1) * share / (splits_backward(schedule) ? 2 * chunks : chunks), m * largest);
    kept = schedule == "gpipe" || schedule.starts_with("bfs") ? m : std::min(m, p);
  }
  // Activations that do not fit are recomputed.
  const double held = held_bytes(combination);
  const double stash = slowest ? kept * static_cast<double>(slowest->stash_before.back()) / p : 0;
  if (slowest && held + stash > limit) {
    const double share = stash > 0 ? (held + stash - limit) / stash : 2;
    seconds += std::min(1.0, share) * m * slowest->forward_seconds / p;
    if (share > 1) seconds *= 10;
  }
  seconds *= combination.accumulate;
  return seconds + exchange_estimate(degrees, 0.5 * work, combination.zero);
}

}  // namespace cohort
