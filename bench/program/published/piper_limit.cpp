// Plans of Piper's class under a limit on every stage's time, from the last stage to the first.
//
// A partial plan covers the nodes after a downset J. What the stages before it need to know is how many devices it uses and its number of
// replicas R: a stage with d replicas keeps activations of ceil((R + d) / d) micro-batches. So J holds a frontier of pairs (R, devices) of
// which none is as good as another in both. From J to each smaller downset I, and for each tensor-parallel degree, a pair goes on with the
// fewest replicas d with which the stage J - I fits time and memory: more would be worse in both. Fewest is found for the whole frontier at
// once: replicas ascend, and with each the pairs that fit are the first so many, because memory rises with R alone; the last of them by
// bisection. Whether a stage fits for (d, degree, micro-batches kept) is choose_variants(), exactly.
//
// Pruned: pairs that leave too few devices for the rest, which needs its area over the limit: sum of least degree x seconds of its nodes.
//
// Cost: (pairs of downsets) x degrees x (frontier + divisors x choices of variants); frontiers have some tens to hundreds of pairs.
// Source: Tarnawski et al. 2021, "Piper: Multidimensional Planner for DNN Parallelization", section 4: the class, the costs and the walk
// over downsets from the end. Its states are all (downset, devices, replicas) and hold the best time, and its choice of variants is greedy;
// frontiers under a limit and the exact choice are ours.
#include <algorithm>
#include <cmath>
#include <cstddef>

#include "bench/program/published/piper.h"

namespace cohort {
namespace {

constexpr double kRounding = 1e-12;  // Bounds that prune give way by this, so that rounding never prunes a plan.

/// The times and bytes of one stage of a plan, for one tensor-parallel degree.
class PiperStageCosts {
 public:
  PiperStageCosts(const PiperInstance& instance, const Downsets& sets, size_t begin, size_t end);

  /// Turns to a degree; false where a node has no variant for it.
  bool take_degree(int degree);
  /// The layers as they are on `replicas`; seconds of what all variants share.
  double shared_seconds(int replicas) const;
  std::vector<LayerVariants> layers(int replicas, int kept_micro_batches) const;
  /// False where no choice of variants can be within the limits: sums of each layer's least, in no time.
  bool may_fit(int replicas, int kept_micro_batches, double limit_seconds, double memory_bytes) const;

 private:
  struct Part {
    const PiperVariant* variant = nullptr;
    double sync_bytes = 0;
  };

  void add_least(const Part& a, const Part& b);

  const PiperInstance& instance_;
  const Downsets& sets_;
  size_t begin_, end_;
  double edge_bytes_ = 0;
  std::vector<int> nodes_, count_;
  std::vector<Part> parts_;  // Two a node.
  // Sums over the nodes of the least that a variant has of each.
  double least_seconds_ = 0, least_parameter_bytes_ = 0, least_kept_bytes_ = 0, least_fixed_bytes_ = 0;
};

PiperStageCosts::PiperStageCosts(const PiperInstance& instance, const Downsets& sets, size_t begin, size_t end)
    : instance_(instance), sets_(sets), begin_(begin), end_(end), nodes_(sets.between(begin, end)) {
  for (const int node : nodes_) {
    const std::vector<int>&before = instance.dag.before[node], &after = instance.dag.after[node];
    for (size_t i = 0; i < before.size(); ++i)
      if (sets.holds(begin, before[i])) edge_bytes_ += instance.nodes[node].in_bytes[i];
    for (size_t i = 0; i < after.size(); ++i)
      if (!sets.holds(end, after[i])) edge_bytes_ += instance.nodes[node].out_bytes[i];
  }
}

bool PiperStageCosts::take_degree(int degree) {
  parts_.assign(nodes_.size() * 2, Part{});
  count_.clear();
  least_seconds_ = least_parameter_bytes_ = least_kept_bytes_ = least_fixed_bytes_ = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const std::vector<PiperVariant>& variants = instance_.nodes[nodes_[i]].variants[degree];
    if (variants.empty()) return false;
    count_.push_back(static_cast<int>(variants.size()));
    const std::vector<int>&before = instance_.dag.before[nodes_[i]], &after = instance_.dag.after[nodes_[i]];
    for (size_t v = 0; v < variants.size(); ++v) {
      Part& part = parts_[i * 2 + v];
      part.variant = &variants[v];
      for (size_t e = 0; e < before.size(); ++e)
        if (sets_.holds(begin_, before[e])) part.sync_bytes += variants[v].sync_in_bytes[e];
      for (size_t e = 0; e < after.size(); ++e)
        if (!sets_.holds(end_, after[e])) part.sync_bytes += variants[v].sync_out_bytes[e];
    }
    add_least(parts_[i * 2], parts_[i * 2 + variants.size() - 1]);
  }
  return true;
}

void PiperStageCosts::add_least(const Part& a, const Part& b) {
  const auto seconds = [&](const Part& part) { return part.variant->seconds + 2 * part.sync_bytes / instance_.bytes_per_second; };
  least_seconds_ += std::min(seconds(a), seconds(b));
  least_parameter_bytes_ += std::min(a.variant->parameter_bytes, b.variant->parameter_bytes);
  least_kept_bytes_ += std::min(a.variant->bytes_per_micro_batch, b.variant->bytes_per_micro_batch);
  least_fixed_bytes_ += std::min(a.variant->fixed_bytes, b.variant->fixed_bytes);
}

bool PiperStageCosts::may_fit(int replicas, int kept_micro_batches, double limit_seconds, double memory_bytes) const {
  if ((least_kept_bytes_ * kept_micro_batches + least_fixed_bytes_) * (1 - kRounding) > memory_bytes) return false;
  const double exchange = 4 * (replicas - 1.0) * least_parameter_bytes_ / instance_.batch / instance_.bytes_per_second;
  return (shared_seconds(replicas) + (least_seconds_ + exchange) / replicas) * (1 - kRounding) <= limit_seconds;
}

double PiperStageCosts::shared_seconds(int replicas) const { return 2 * edge_bytes_ / replicas / instance_.bytes_per_second; }

std::vector<LayerVariants> PiperStageCosts::layers(int replicas, int kept_micro_batches) const {
  std::vector<LayerVariants> layers(nodes_.size());
  for (size_t i = 0; i < nodes_.size(); ++i) {
    layers[i].count = count_[i];
    for (int v = 0; v < count_[i]; ++v) {
      const Part& part = parts_[i * 2 + v];
      const double exchange = 4 * (replicas - 1.0) * part.variant->parameter_bytes / instance_.batch;
      layers[i].seconds[v] = ((2 * part.sync_bytes + exchange) / instance_.bytes_per_second + part.variant->seconds) / replicas;
      layers[i].bytes[v] = part.variant->bytes_per_micro_batch * kept_micro_batches + part.variant->fixed_bytes;
    }
  }
  return layers;
}

class Search {
 public:
  Search(const PiperInstance& instance, const Downsets& sets, const std::vector<double>& area_seconds, double limit_seconds)
      : instance_(instance), sets_(sets), area_(area_seconds), limit_(limit_seconds), frontiers_(sets.size()) {
    const int most = std::min(instance.devices, instance.batch);
    for (int d = 1; d <= most; ++d)
      if (instance.batch % d == 0) divisors_.push_back(d);
    for (const double area : area_seconds) least_devices_.push_back(std::ceil(area / limit_ * (1 - kRounding) - kRounding));
  }

  PiperLimitResult run(SearchClock::time_point deadline) {
    frontiers_.back() = {Pair{}};
    for (size_t end = sets_.size() - 1; end > 0 && frontiers_[0].empty(); --end) {
      keep_best(frontiers_[end]);
      for (size_t begin = end; begin-- > 0 && frontiers_[0].empty() && !frontiers_[end].empty();) {
        if (!may_be_stage(begin, end)) continue;
        if (SearchClock::now() > deadline) return {.verdict = PiperVerdict::kNotKnown, .stages = {}};
        extend(begin, end);
      }
    }
    if (!frontiers_[0].empty()) return {.verdict = PiperVerdict::kPlan, .stages = stages()};
    return {.verdict = uncertain_ ? PiperVerdict::kNotKnown : PiperVerdict::kNone, .stages = {}};
  }

 private:
  /// A partial plan after a downset: replicas and devices of its stages; its first stage.
  struct Pair {
    int replicas = 0, devices = 0;
    size_t end = 0, next = 0;  // Where the first stage ends, and which pair of that frontier goes on.
    int stage_replicas = 0, degree = 0;
  };

  /// Replicas ascend, devices fall.
  static void keep_best(std::vector<Pair>& pairs) {
    std::sort(pairs.begin(), pairs.end(),
              [](const Pair& a, const Pair& b) { return a.replicas != b.replicas ? a.replicas < b.replicas : a.devices < b.devices; });
    size_t kept = 0;
    for (const Pair& pair : pairs)
      if (kept == 0 || pair.devices < pairs[kept - 1].devices) pairs[kept++] = pair;
    pairs.resize(kept);
    pairs.shrink_to_fit();
  }

  /// Devices that the stages after `begin` may use.
  double most_devices(size_t begin) const { return instance_.devices - std::max(least_devices_[begin], begin > 0 ? 1.0 : 0.0); }

  bool may_be_stage(size_t begin, size_t end) const {
    const double left = most_devices(begin) - frontiers_[end].back().devices;
    return left >= 1 && (area_[end] - area_[begin]) * (1 - kRounding) <= left * limit_ && sets_.is_subset(begin, end);
  }

  void extend(size_t begin, size_t end) {
    PiperStageCosts costs(instance_, sets_, begin, end);
    for (size_t degree = 0; degree < instance_.degrees.size(); ++degree)
      if (costs.take_degree(static_cast<int>(degree))) extend_degree(costs, begin, end, static_cast<int>(degree));
    if (frontiers_[begin].size() > kManyPairs) keep_best(frontiers_[begin]);
  }

  void extend_degree(const PiperStageCosts& costs, size_t begin, size_t end, int degree) {
    const std::vector<Pair>& pairs = frontiers_[end];
    const double most = most_devices(begin);
    size_t first = 0;  // Pairs before it have gone on with fewer replicas.
    for (const int replicas : divisors_) {
      const double devices = static_cast<double>(replicas) * instance_.degrees[degree];
      while (first < pairs.size() && pairs[first].devices + devices > most) ++first;
      if (first == pairs.size() || pairs[first].replicas + replicas > instance_.batch) return;
      const size_t stop = first_that_fails(costs, pairs, first, replicas);
      for (; first < stop; ++first)
        frontiers_[begin].push_back({.replicas = pairs[first].replicas + replicas,
                                     .devices = pairs[first].devices + static_cast<int>(devices),
                                     .end = end,
                                     .next = first,
                                     .stage_replicas = replicas,
                                     .degree = degree});
    }
  }

  /// The pairs from `first` on, for which memory only rises.
  size_t first_that_fails(const PiperStageCosts& costs, const std::vector<Pair>& pairs, size_t first, int replicas) {
    if (!fits(costs, pairs[first], replicas)) return first;
    size_t fitting = first, failing = pairs.size();
    if (failing - fitting > 1 && fits(costs, pairs.back(), replicas)) return failing;
    while (failing - fitting > 1) {
      const size_t middle = (fitting + failing) / 2;
      (fits(costs, pairs[middle], replicas) ? fitting : failing) = middle;
    }
    return failing;
  }

  /// Micro-batches whose activations a device of the stage keeps: ceil of replicas from it on over its own.
  static int kept_micro_batches(const Pair& behind, int replicas) { return (behind.replicas + replicas - 1) / replicas + 1; }

  VariantChoice choose(const PiperStageCosts& costs, const Pair& behind, int replicas) const {
    const int kept = kept_micro_batches(behind, replicas);
    return choose_variants(costs.layers(replicas, kept), instance_.memory_bytes, limit_ - costs.shared_seconds(replicas));
  }

  bool fits(const PiperStageCosts& costs, const Pair& behind, int replicas) {
    if (behind.replicas + replicas > instance_.batch) return false;
    if (!costs.may_fit(replicas, kept_micro_batches(behind, replicas), limit_, instance_.memory_bytes)) return false;
    const VariantChoice::LoadVerdict verdict = choose(costs, behind, replicas).verdict;
    uncertain_ |= verdict == VariantChoice::LoadVerdict::kNotKnown;
    return verdict == VariantChoice::LoadVerdict::kFits;
  }

  std::vector<PiperStage> stages() const {
    std::vector<PiperStage> stages;
    size_t begin = 0, index = 0;
    while (begin + 1 < sets_.size()) {
      const Pair& pair = frontiers_[begin][index];
      stages.push_back(stage(begin, pair));
      begin = pair.end;
      index = pair.next;
    }
    return stages;
  }

  PiperStage stage(size_t begin, const Pair& pair) const {
    PiperStageCosts costs(instance_, sets_, begin, pair.end);
    costs.take_degree(pair.degree);
    const std::vector<int> variant = choose(costs, frontiers_[pair.end][pair.next], pair.stage_replicas).variant;
    double seconds = costs.shared_seconds(pair.stage_replicas);
    const std::vector<LayerVariants> layers = costs.layers(pair.stage_replicas, 1);
    for (size_t i = 0; i < layers.size(); ++i) seconds += layers[i].seconds[variant[i]];
    return {
        .begin = begin, .end = pair.end, .replicas = pair.stage_replicas, .degree = pair.degree, .variant = variant, .seconds = seconds};
  }

  static constexpr size_t kManyPairs = 1 << 14;

  const PiperInstance& instance_;
  const Downsets& sets_;
  const std::vector<double>& area_;
  double limit_;
  std::vector<double> least_devices_;
  std::vector<int> divisors_;
  std::vector<std::vector<Pair>> frontiers_;
  bool uncertain_ = false;
};

}  // namespace

PiperLimitResult search_piper_limit(const PiperInstance& instance, const Downsets& sets, const std::vector<double>& area_seconds,
                                    double limit_seconds, SearchClock::time_point deadline) {
  return Search(instance, sets, area_seconds, limit_seconds).run(deadline);
}

// Chooses variants of layers under a limit of memory and of time: a knapsack, exactly.
//
// Every layer first gets its fastest variant. When that is too large, some layers must swap: a swap saves bytes and costs seconds. Swaps
// are sorted by seconds a byte; taking them in that order, the last one in part, is the cheapest way to save enough if parts were allowed,
// so when even that takes too long there is no choice. Otherwise branch and bound: take the next swap or leave it, with that bound at
// each step. Who leaves a swap also leaves all that save no more and cost no less: of layers that are alike only the first few, in the
// order of their seconds, are ever taken, so twenty equal layers make twenty cases and not a million.
//
// Cost: sorting, then mostly one pass; at most kMostSteps bounds.
// Source: bound and branching are Dantzig's and Kolesar's for the 0/1 knapsack (Martello and Toth 1990, "Knapsack Problems", chapter 2).
// Piper (Tarnawski et al. 2021, section 4) takes swaps greedily, without the search.
namespace {

constexpr int kMostSteps = 5000;

struct Swap {
  double saved_bytes = 0, seconds = 0, seconds_per_byte = 0;
  size_t layer = 0;
};

class VariantSearch {
 public:
  explicit VariantSearch(std::vector<Swap> swaps) : swaps_(std::move(swaps)), taken_(swaps_.size()) {
    std::sort(swaps_.begin(), swaps_.end(), [](const Swap& a, const Swap& b) {
      if (a.seconds_per_byte != b.seconds_per_byte) return a.seconds_per_byte < b.seconds_per_byte;
      return a.saved_bytes != b.saved_bytes ? a.saved_bytes > b.saved_bytes : a.layer < b.layer;
    });
  }

  VariantChoice::LoadVerdict run(double needed_bytes, double left_seconds) {
    if (extend(0, needed_bytes, left_seconds)) return VariantChoice::LoadVerdict::kFits;
    return steps_ > kMostSteps ? VariantChoice::LoadVerdict::kNotKnown : VariantChoice::LoadVerdict::kNone;
  }

  void mark(std::vector<int>& variant) const {
    for (size_t i = 0; i < swaps_.size(); ++i)
      if (taken_[i]) variant[swaps_[i].layer] ^= 1;
  }

 private:
  bool extend(size_t next, double needed_bytes, double left_seconds) {
    if (needed_bytes <= 0) return true;
    while (next < swaps_.size() && is_left(next)) ++next;
    if (++steps_ > kMostSteps || !may_do(next, needed_bytes, left_seconds)) return false;
    const Swap& swap = swaps_[next];
    if (swap.seconds <= left_seconds) {
      taken_[next] = true;
      if (extend(next + 1, needed_bytes - swap.saved_bytes, left_seconds - swap.seconds)) return true;
      taken_[next] = false;
    }
    left_.push_back(next);
    const bool done = extend(next + 1, needed_bytes, left_seconds);
    left_.pop_back();
    return done;
  }

  /// Whether a swap that was left is at least as good.
  bool is_left(size_t at) const {
    return std::any_of(left_.begin(), left_.end(), [&](size_t left) {
      return swaps_[left].saved_bytes >= swaps_[at].saved_bytes && swaps_[left].seconds <= swaps_[at].seconds;
    });
  }

  /// The bound: swaps in order, the last in part.
  bool may_do(size_t next, double needed_bytes, double left_seconds) const {
    double seconds = 0;
    for (size_t i = next; i < swaps_.size() && needed_bytes > 0; ++i) {
      if (!left_.empty() && is_left(i)) continue;
      const double part = std::min(1.0, needed_bytes / swaps_[i].saved_bytes);
      seconds += part * swaps_[i].seconds;
      needed_bytes -= swaps_[i].saved_bytes;
      if (seconds * (1 - kRounding) > left_seconds) return false;
    }
    return needed_bytes <= 0;
  }

  std::vector<Swap> swaps_;
  std::vector<bool> taken_;
  std::vector<size_t> left_;
  int steps_ = 0;
};

int fastest(const LayerVariants& layer) {
  if (layer.count == 1) return 0;
  if (layer.seconds[0] != layer.seconds[1]) return layer.seconds[1] < layer.seconds[0];
  return layer.bytes[1] < layer.bytes[0];
}

}  // namespace

VariantChoice choose_variants(const std::vector<LayerVariants>& layers, double memory_bytes, double limit_seconds) {
  VariantChoice choice;
  double bytes = 0, seconds = 0, most_saved_bytes = 0;
  std::vector<Swap> swaps;
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerVariants& layer = layers[i];
    const int first = fastest(layer);
    choice.variant.push_back(first);
    bytes += layer.bytes[first];
    seconds += layer.seconds[first];
    const double saved = layer.count == 1 ? 0 : layer.bytes[first] - layer.bytes[1 - first];
    if (saved <= 0) continue;
    const double slower = layer.seconds[1 - first] - layer.seconds[first];
    swaps.push_back({.saved_bytes = saved, .seconds = slower, .seconds_per_byte = slower / saved, .layer = i});
    most_saved_bytes += saved;
  }
  if (seconds > limit_seconds || bytes - most_saved_bytes > memory_bytes) return choice;
  choice.verdict = VariantChoice::LoadVerdict::kFits;
  if (bytes <= memory_bytes) return choice;
  VariantSearch search(std::move(swaps));
  choice.verdict = search.run(bytes - memory_bytes, limit_seconds - seconds);
  if (choice.verdict == VariantChoice::LoadVerdict::kFits) search.mark(choice.variant);
  return choice;
}

}  // namespace cohort
