// A cut into more stages than ranks: stage s runs on rank s mod R, as interleaved schedules deal them, and what counts is the sum of a
// rank.
//
// Which stages share a rank makes the sums depend on all cuts at once, so there is no short dynamic program. Steps: (1) climb from every
// start: move one cut, or all cuts from one on, by 1, 2, 4, ... layers for as long as that helps; (2) walk all cuts in order, leaving out
// those whose ranks are already slower or larger than the best found, for as many steps as kMostSteps allows. Where step 2 ends by itself
// the result is proved the best. Two stages of one rank hand over for nothing.

#include <algorithm>
#include <limits>
#include <tuple>

#include "cohort/plan/split/split_search.h"

namespace cohort {
namespace {

constexpr int64_t kMostSteps = 5'000'000;        // Layers looked at: some hundredths of a second,
constexpr int64_t kMostClimbSteps = 15'000'000;  // and some tenths.

class DealtSearch {
 public:
  DealtSearch(const SplitCosts& costs, int64_t memory_limit_bytes)
      : costs_(costs), limit_bytes_(memory_limit_bytes), rank_seconds_(costs.num_ranks()), rank_bytes_(costs.num_ranks()) {}

  FoundSplit run(const std::vector<std::vector<int>>& starts) {
    for (const std::vector<int>& start : starts) climb(start);
    num_steps_ = 0;
    current_.assign(1, 0);
    walk();
    return {best_, num_steps_ <= kMostSteps};
  }

 private:
  /// Compared in this order.
  using Score = std::tuple<int64_t, double, double>;  // Bytes over the limit, bottleneck, sum of transfers.

  int64_t over_limit(int64_t bytes) const { return std::max<int64_t>(0, bytes - limit_bytes_); }

  Score score_of(const std::vector<int>& first_layer) {
    num_steps_ += costs_.num_layers();
    const Split split = costs_.account(first_layer);
    double transfers = 0;
    for (const Split::Stage& stage : split.stages) transfers += stage.transfer_seconds;
    return {over_limit(most_memory_bytes(split, costs_.num_ranks())), split.bottleneck_seconds, transfers};
  }

  bool take_if_better(const std::vector<int>& first_layer, Score& score) {
    const Score tried = score_of(first_layer);
    if (tried < best_score_) best_score_ = tried, best_ = first_layer;
    if (!(tried < score)) return false;
    score = tried;
    return true;
  }

  void climb(std::vector<int> cuts) {
    Score score{std::numeric_limits<int64_t>::max(), 0, 0};
    take_if_better(cuts, score);
    bool improved = true;
    while (improved && num_steps_ < kMostClimbSteps) {
      improved = false;
      for (size_t stage = 1; stage < cuts.size(); ++stage) {
        for (int by = 1; by < costs_.num_layers(); by *= 2) {
          for (const int move : {by, -by}) {
            for (const bool all_behind : {false, true}) {
              std::vector<int> moved = cuts;
              for (size_t i = stage; i < (all_behind ? cuts.size() : stage + 1); ++i) moved[i] += move;
              if (!is_cut(moved, stage) || !take_if_better(moved, score)) continue;
              cuts = std::move(moved);
              improved = true;
            }
          }
        }
      }
    }
  }

  /// Whether stages stay non-empty when cuts from `stage` on were moved.
  bool is_cut(const std::vector<int>& cuts, size_t stage) const {
    if (cuts[stage] <= cuts[stage - 1] || cuts.back() >= costs_.num_layers()) return false;
    return stage + 1 == cuts.size() || cuts[stage] < cuts[stage + 1];
  }

  /// All ways to go on from current_, whose last stage is still open.
  void walk() {
    const int stage = static_cast<int>(current_.size()) - 1, first = current_.back();
    const int stages_behind = costs_.num_stages() - stage - 1, rank = costs_.rank_of(stage);
    if (stages_behind == 0) {
      if (can_lead_to_better(rank, costs_.compute_seconds(first, costs_.num_layers()), memory_of(stage, first, costs_.num_layers()))) {
        Score score = best_score_;
        take_if_better(current_, score);
      }
      return;
    }
    for (int end = first + 1; end <= costs_.num_layers() - stages_behind; ++end) {
      if (++num_steps_ > kMostSteps) return;
      const double seconds = costs_.compute_seconds(first, end);
      const int64_t bytes = memory_of(stage, first, end);
      if (!can_lead_to_better(rank, seconds, bytes)) break;  // Longer stages are slower and larger.
      const double seconds_before = rank_seconds_[rank];
      rank_seconds_[rank] += seconds, rank_bytes_[rank] += bytes;
      current_.push_back(end);
      walk();
      current_.pop_back();
      rank_seconds_[rank] = seconds_before, rank_bytes_[rank] -= bytes;
    }
  }

  int64_t memory_of(int stage, int first, int end) const { return costs_.memory_bytes(stage, first, end, 0); }

  /// Transfers left out, sums rounded: so with a little room.
  bool can_lead_to_better(int rank, double seconds, int64_t bytes) const {
    const auto& [over, bottleneck, transfers] = best_score_;
    const int64_t least_over = over_limit(rank_bytes_[rank] + bytes);
    if (least_over != over) return least_over < over;
    return over > 0 || (rank_seconds_[rank] + seconds) * (1 - 1e-12) <= bottleneck;
  }

  const SplitCosts& costs_;
  const int64_t limit_bytes_;
  int64_t num_steps_ = 0;
  std::vector<int> best_, current_;
  Score best_score_{std::numeric_limits<int64_t>::max(), 0, 0};
  std::vector<double> rank_seconds_;  // Of the stages of current_ but the last.
  std::vector<int64_t> rank_bytes_;
};

}  // namespace

FoundSplit search_dealt_split(const SplitCosts& costs, int64_t memory_limit_bytes, const std::vector<std::vector<int>>& starts) {
  return DealtSearch(costs, memory_limit_bytes).run(starts);
}

}  // namespace cohort
