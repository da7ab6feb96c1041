// The cheapest layers to run again in backward so that a stage fits: a knapsack whose items share memory.
//
// Recomputing a layer frees its stash, except an output that other layers need; its inputs must stay and are added once where no other
// layer keeps them. While a layer runs again, its stash exists for one micro-batch.
//
// Steps: (1) take layers by seconds per freed byte until the stage fits, then drop the most expensive ones that are not needed; (2) branch
// and bound in the same order, with the fractional knapsack as the bound (Dantzig 1957). Cost: at most kMostSteps; where that is not
// enough, the best set so far is the result.

#include "cohort/plan/cut/split.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

constexpr int64_t kMostSteps = 20'000'000;  // Layers and edges visited: tenths of a second.

/// Memory of the stage as a function of its recomputed layers.
class StageMemory {
 public:
  StageMemory(const Profile& profile, const RecomputeOptions& options)
      : profile_(profile), options_(options), readers_(options.end_layer - options.first_layer) {
    std::vector<int> received;
    for (const auto& [from, to] : profile.edges) {
      if (to < options.first_layer || to >= options.end_layer || from < 0) continue;
      if (from < options.first_layer) received.push_back(from);
      else readers_[from - options.first_layer].push_back(to);
    }
    sort_unique(received);
    for (const int value : received) kept_bytes_ += profile.layers[value].output_bytes;
    for (int layer = options.first_layer; layer < options.end_layer; ++layer) {
      kept_bytes_ += profile.layers[layer].stash_bytes;
      weight_bytes_ += profile.layers[layer].weight_bytes;
    }
  }

  /// Bytes of one micro-batch.
  int64_t freed_bytes(int layer) const { return profile_.layers[layer].freed_bytes(); }

  int64_t bytes_with(const std::vector<bool>& recomputed) const {
    int64_t kept = kept_bytes_, largest = 0;
    for (int layer = options_.first_layer; layer < options_.end_layer; ++layer) {
      if (recomputed[layer]) {
        kept -= freed_bytes(layer);
        largest = std::max(largest, freed_bytes(layer));
      }
      const LayerProfile& cost = profile_.layers[layer];
      if (cost.keeps_output(recomputed[layer])) continue;
      const std::vector<int>& readers = readers_[layer - options_.first_layer];
      if (std::any_of(readers.begin(), readers.end(), [&](int reader) { return recomputed[reader]; })) kept += cost.output_bytes;
    }
    return total(kept) + largest;
  }
  /// A lower bound of the bytes with any set of layers that frees `freed` bytes per micro-batch.
  int64_t least_bytes_freeing(int64_t freed) const { return total(kept_bytes_ - freed); }

  int64_t num_steps() const { return static_cast<int64_t>(profile_.edges.size()) + options_.end_layer - options_.first_layer; }

 private:
  int64_t total(int64_t kept) const {
    const double weights = static_cast<double>(weight_bytes_) * (2 + options_.optimizer_bytes_factor);
    return static_cast<int64_t>(weights + static_cast<double>(kept) * options_.kept_micro_batches);
  }

  const Profile& profile_;
  const RecomputeOptions& options_;
  std::vector<std::vector<int>> readers_;  // Readers within the stage.
  int64_t kept_bytes_ = 0, weight_bytes_ = 0;
};

class RecomputeSearch {
 public:
  RecomputeSearch(const Profile& profile, const RecomputeOptions& options, const StageMemory& memory)
      : profile_(profile), memory_(memory), limit_bytes_(options.memory_bytes), current_(profile.layers.size()) {
    for (int layer = options.first_layer; layer < options.end_layer; ++layer)
      if (memory.freed_bytes(layer) > 0) candidates_.push_back(layer);
    std::stable_sort(candidates_.begin(), candidates_.end(), [&](int a, int b) {
      return seconds_of(a) * static_cast<double>(memory_.freed_bytes(b)) < seconds_of(b) * static_cast<double>(memory_.freed_bytes(a));
    });
    freed_behind_.assign(candidates_.size() + 1, 0);
    for (size_t i = candidates_.size(); i-- > 0;) freed_behind_[i] = freed_behind_[i + 1] + memory.freed_bytes(candidates_[i]);
  }

  /// The cheapest set that fits; empty where none was found.
  std::optional<std::vector<bool>> cheapest() {
    take_by_ratio();
    walk(0, 0, 0);
    if (best_seconds_ == std::numeric_limits<double>::infinity()) return std::nullopt;
    return best_;
  }
  int64_t least_bytes() {
    least_bytes_ = memory_.bytes_with(current_);
    walk_to_least(0, 0);
    return least_bytes_;
  }
  bool exact() const { return num_steps_ <= kMostSteps; }

 private:
  double seconds_of(int layer) const { return profile_.layers[layer].forward_seconds; }
  int64_t measure() {
    num_steps_ += memory_.num_steps();
    return memory_.bytes_with(current_);
  }

  void take_by_ratio() {
    std::vector<int> taken;
    bool fits = measure() <= limit_bytes_;
    for (size_t i = 0; i < candidates_.size() && !fits; ++i) {
      current_[candidates_[i]] = true;
      taken.push_back(candidates_[i]);
      fits = measure() <= limit_bytes_;
    }
    std::stable_sort(taken.begin(), taken.end(), [&](int a, int b) { return seconds_of(a) > seconds_of(b); });
    double seconds = 0;
    for (const int layer : taken) {
      current_[layer] = false;
      if (fits && measure() <= limit_bytes_) continue;
      current_[layer] = true;
      seconds += seconds_of(layer);
    }
    if (fits) best_ = current_, best_seconds_ = seconds;
    current_.assign(current_.size(), false);
  }

  /// Decides on candidates from `position` on. A set that fits is not extended, because more layers only cost time.
  void walk(size_t position, double seconds, int64_t freed) {
    if (num_steps_ > kMostSteps || seconds >= best_seconds_) return;
    if (measure() <= limit_bytes_) {
      best_ = current_, best_seconds_ = seconds;
      return;
    }
    if (position == candidates_.size() || seconds + least_seconds(position, freed) >= best_seconds_) return;
    const int layer = candidates_[position];
    current_[layer] = true;
    walk(position + 1, seconds + seconds_of(layer), freed + memory_.freed_bytes(layer));
    current_[layer] = false;
    walk(position + 1, seconds, freed);
  }

  /// Lower bound of the seconds to free the rest; infinite where that is impossible.
  double least_seconds(size_t position, int64_t freed) const {
    if (memory_.least_bytes_freeing(freed + freed_behind_[position]) > limit_bytes_) return std::numeric_limits<double>::infinity();
    double seconds = 0;
    for (; position < candidates_.size() && memory_.least_bytes_freeing(freed) > limit_bytes_; ++position) {
      const int layer = candidates_[position];
      const int64_t before = memory_.least_bytes_freeing(freed);
      freed += memory_.freed_bytes(layer);
      const int64_t after = memory_.least_bytes_freeing(freed);
      const double part = after >= limit_bytes_ ? 1 : static_cast<double>(before - limit_bytes_) / static_cast<double>(before - after);
      seconds += part * seconds_of(layer) * (1 - 1e-12);  // Rounding must not hide a set as cheap as this.
    }
    return seconds;
  }

  void walk_to_least(size_t position, int64_t freed) {
    if (num_steps_ > kMostSteps || memory_.least_bytes_freeing(freed + freed_behind_[position]) >= least_bytes_) return;
    least_bytes_ = std::min(least_bytes_, measure());
    if (position == candidates_.size()) return;
    const int layer = candidates_[position];
    current_[layer] = true;
    walk_to_least(position + 1, freed + memory_.freed_bytes(layer));
    current_[layer] = false;
    walk_to_least(position + 1, freed);
  }

  const Profile& profile_;
  const StageMemory& memory_;
  const int64_t limit_bytes_;
  int64_t num_steps_ = 0;
  std::vector<int> candidates_;        // Sorted by seconds per byte that they free.
  std::vector<int64_t> freed_behind_;  // Bytes freed by all candidates from a position on.
  std::vector<bool> current_, best_;
  double best_seconds_ = std::numeric_limits<double>::infinity();
  int64_t least_bytes_ = 0;
};

void check_options(const Profile& profile, const RecomputeOptions& options) {
  check_profile(profile);
  const int num_layers = static_cast<int>(profile.layers.size());
  if (options.first_layer < 0 || options.first_layer >= options.end_layer || options.end_layer > num_layers)
    fail(ErrorCode::kBadInput, "recompute: layers ", options.first_layer, " to ", options.end_layer, " are not a stage of ", num_layers,
         " layers");
  if (options.kept_micro_batches < 0 || options.memory_bytes < 0 || !(options.optimizer_bytes_factor >= 0))
    fail(ErrorCode::kBadInput, "recompute: ", options.kept_micro_batches, " micro-batches, ", options.memory_bytes,
         " bytes, optimizer_bytes_factor ", options.optimizer_bytes_factor, "; none may be negative");
}

}  // namespace

RecomputeChoice choose_recompute(const Profile& profile, const RecomputeOptions& options) {
  check_options(profile, options);
  const StageMemory memory(profile, options);
  RecomputeChoice choice{.layers = std::vector<bool>(profile.layers.size())};
  if (options.memory_bytes > 0) {
    RecomputeSearch search(profile, options, memory);
    const auto found = search.cheapest();
    if (!found) {
      RecomputeSearch smallest(profile, options, memory);
      const int64_t least = smallest.least_bytes();
      fail(ErrorCode::kInfeasible, "layers '", profile.layers[options.first_layer].name, "' to '",
           profile.layers[options.end_layer - 1].name, "' do not fit ", options.memory_bytes, " bytes (", human_bytes(options.memory_bytes),
           ") whatever is recomputed; the least ", smallest.exact() ? "is " : "found is ", least, " bytes (", human_bytes(least),
           "): use more stages or smaller micro-batches");
    }
    choice.layers = *found;
    choice.exact = search.exact();
  }
  for (size_t layer = 0; layer < choice.layers.size(); ++layer)
    if (choice.layers[layer]) choice.seconds += profile.layers[layer].forward_seconds;
  choice.memory_bytes = memory.bytes_with(choice.layers);
  return choice;
}

}  // namespace cohort
