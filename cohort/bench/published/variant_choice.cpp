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

#include "cohort/bench/published/piper.h"

#include <algorithm>
#include <cstddef>

namespace cohort {
namespace {

constexpr int kMostSteps = 5000;
constexpr double kRounding = 1e-12;

struct Swap {
  double saved_bytes = 0, seconds = 0, seconds_per_byte = 0;
  size_t layer = 0;
};

class Search {
 public:
  explicit Search(std::vector<Swap> swaps) : swaps_(std::move(swaps)), taken_(swaps_.size()) {
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
  Search search(std::move(swaps));
  choice.verdict = search.run(bytes - memory_bytes, limit_seconds - seconds);
  if (choice.verdict == VariantChoice::LoadVerdict::kFits) search.mark(choice.variant);
  return choice;
}

}  // namespace cohort
