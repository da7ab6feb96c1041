// Best, even and given cuts of a model into stages; cuts where ranks have several stages; and split=auto. Each part has its head below.
#include "cohort/plan/cut/split.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <numeric>
#include <tuple>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/plan/cost/pipeline_forecast.h"
#include "cohort/plan/cut/split_search.h"
#include "cohort/schedule/stage_graph.h"

namespace cohort {
namespace {

[[noreturn]] void fail_for_memory(const SplitCosts& costs, int64_t limit_bytes, const Split& smallest, bool proved) {
  const int64_t needed = most_memory_bytes(smallest, costs.num_ranks());
  fail(ErrorCode::kInfeasible, "no cut of ", costs.num_layers(), " layers into ", costs.num_stages(), " stages on ", costs.num_ranks(),
       " ranks fits ", limit_bytes, " bytes (", human_bytes(limit_bytes), ") a rank; the least that would do",
       proved ? " is " : ", of those tried, is ", needed, " bytes (", human_bytes(needed),
       "): allow more, use more ranks or smaller micro-batches, or recompute");
}

/// The bottleneck of the best start that fits; slower stages need not be searched.
SplitLimits limits_from_starts(const SplitCosts& costs, int64_t memory_bytes, const std::vector<std::vector<int>>& starts) {
  SplitLimits limits;
  if (memory_bytes > 0) limits.memory_bytes = memory_bytes;
  for (const std::vector<int>& start : starts) {
    const Split split = costs.account(start);
    if (most_memory_bytes(split, costs.num_ranks()) <= limits.memory_bytes)
      limits.seconds = std::min(limits.seconds, split.bottleneck_seconds);
  }
  return limits;
}

/// The cut with the least bottleneck; ties go to the least transfers.
std::optional<FoundSplit> least_bottleneck(const SplitCosts& costs, SplitLimits limits) {
  auto fastest = search_split(costs, SplitGoal::kBottleneck, limits);
  if (!fastest) return std::nullopt;
  const Split split = costs.account(fastest->first_layer);
  limits.seconds = 0;
  for (const Split::Stage& stage : split.stages) limits.seconds = std::max(limits.seconds, stage.seconds + stage.transfer_seconds);
  auto found = search_split(costs, SplitGoal::kTransfers, limits);
  if (!found) return fastest;  // The limit of labels was reached.
  found->exact &= fastest->exact;
  return found;
}

std::string row(const std::vector<std::string>& cells, const std::vector<size_t>& widths) {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    const std::string pad(widths[i] - std::min(widths[i], cells[i].size()), ' ');
    line += (i ? "  " : "") + (i == 1 ? cells[i] + pad : pad + cells[i]);  // Names are aligned left, numbers right.
  }
  while (line.ends_with(' ')) line.pop_back();
  return line + "\n";
}

std::string fixed(double value, int digits) {
  char out[400];
  std::snprintf(out, sizeof out, "%.*f", digits, value);
  return out;
}

}  // namespace

std::vector<int> even_cuts(int num_layers, int num_stages) {
  std::vector<int> first_layer;
  for (int64_t stage = 0; stage < num_stages; ++stage) first_layer.push_back(static_cast<int>(stage * num_layers / num_stages));
  return first_layer;
}

double num_cuts(int num_layers, int num_stages) {
  double count = 1;
  for (int i = 1; i < num_stages; ++i) count *= static_cast<double>(num_layers - i) / i;
  return count;
}

bool next_cut(std::vector<int>& first_layer, int num_layers) {
  const int num_stages = static_cast<int>(first_layer.size());
  for (int stage = num_stages - 1; stage > 0; --stage) {
    if (first_layer[static_cast<size_t>(stage)] >= num_layers - num_stages + stage) continue;
    std::iota(first_layer.begin() + stage, first_layer.end(), first_layer[static_cast<size_t>(stage)] + 1);
    return true;
  }
  return false;
}

int64_t most_memory_bytes(const Split& split, int num_ranks) {
  std::vector<int64_t> bytes(num_ranks);
  for (size_t stage = 0; stage < split.stages.size(); ++stage) {
    int64_t& sum = bytes[stage % num_ranks];
    sum += std::min(split.stages[stage].memory_bytes, std::numeric_limits<int64_t>::max() - sum);
  }
  return *std::max_element(bytes.begin(), bytes.end());
}

Split best_split(const Profile& profile, const SplitOptions& options) {
  const SplitCosts costs(profile, options);
  std::vector<std::vector<int>> starts = {costs.equal_seconds(), even_cuts(costs.num_layers(), costs.num_stages())};
  FoundSplit found;
  if (costs.num_ranks() == costs.num_stages()) {
    const auto best = least_bottleneck(costs, limits_from_starts(costs, options.memory_bytes, starts));
    if (!best) {
      SplitLimits known;
      for (const std::vector<int>& start : starts)
        known.memory_bytes = std::min(known.memory_bytes, most_memory_bytes(costs.account(start), costs.num_ranks()));
      const auto smallest = search_split(costs, SplitGoal::kMemory, known);
      fail_for_memory(costs, options.memory_bytes, costs.account(smallest->first_layer), true);
    }
    found = *best;
  } else {
    // Also start from the best cut with a rank per stage, because equal stages make equal ranks.
    SplitOptions undealt = options;
    undealt.num_ranks = 0;
    const SplitCosts undealt_costs(profile, undealt);
    if (const auto best = least_bottleneck(undealt_costs, limits_from_starts(undealt_costs, 0, starts)))
      starts.push_back(best->first_layer);
    found = search_dealt_split(costs, options.memory_bytes > 0 ? options.memory_bytes : std::numeric_limits<int64_t>::max(), starts);
  }
  Split split = costs.account(found.first_layer);
  split.exact = found.exact;
  if (options.memory_bytes > 0 && most_memory_bytes(split, costs.num_ranks()) > options.memory_bytes)
    fail_for_memory(costs, options.memory_bytes, split, found.exact);
  return split;
}

Split even_split(const Profile& profile, const SplitOptions& options) {
  const SplitCosts costs(profile, options);
  Split split = costs.account(even_cuts(costs.num_layers(), costs.num_stages()));
  split.exact = false;
  return split;
}

Split given_split(const Profile& profile, const SplitOptions& options, const std::vector<int>& cuts) {
  const SplitCosts costs(profile, options);
  if (static_cast<int>(cuts.size()) + 1 != costs.num_stages())
    fail(ErrorCode::kBadInput, "split: ", cuts.size(), " cuts make ", cuts.size() + 1, " stages, but the layout has ", costs.num_stages());
  std::vector<int> first_layer{0};
  for (const int cut : cuts) {
    if (cut <= first_layer.back() || cut >= costs.num_layers())
      fail(ErrorCode::kBadInput, "split: cut ", cut, " after ", first_layer.back(), "; cuts rise and lie between 1 and ",
           costs.num_layers() - 1, " (the model has ", costs.num_layers(), " layers)");
    first_layer.push_back(cut);
  }
  Split split = costs.account(std::move(first_layer));
  split.exact = false;
  return split;
}

std::string describe(const Profile& profile, const Split& split) {
  std::vector<std::vector<std::string>> rows = {
      {"stage", "layers", "forward ms", "backward ms", "transfer ms", "weights MB", "memory MB", "of slowest"}};
  for (size_t stage = 0; stage < split.stages.size(); ++stage) {
    const int first = split.first_layer[stage];
    const int end = stage + 1 < split.stages.size() ? split.first_layer[stage + 1] : static_cast<int>(profile.layers.size());
    double forward = 0, backward = 0, weight_bytes = 0;
    for (int layer = first; layer < end; ++layer) {
      const LayerProfile& cost = profile.layers[layer];
      forward += cost.forward_seconds;
      backward += cost.backward_input_seconds + cost.backward_weight_seconds;
      weight_bytes += static_cast<double>(cost.weight_bytes);
    }
    const Split::Stage& its = split.stages[stage];
    const std::string from = profile.layers[first].name, to = profile.layers[end - 1].name;
    const double share = split.bottleneck_seconds > 0 ? 100 * (its.seconds + its.transfer_seconds) / split.bottleneck_seconds : 0;
    rows.push_back({std::to_string(stage), from == to ? from : concat(from, " .. ", to, " (", end - first, ")"), fixed(1e3 * forward, 3),
                    fixed(1e3 * backward, 3), fixed(1e3 * its.transfer_seconds, 3), fixed(1e-6 * weight_bytes, 2),
                    fixed(1e-6 * static_cast<double>(its.memory_bytes), 2), fixed(share, 0) + " %"});
  }
  std::vector<size_t> widths(rows[0].size());
  for (const auto& cells : rows)
    for (size_t i = 0; i < cells.size(); ++i) widths[i] = std::max(widths[i], cells[i].size());
  std::string table;
  for (const auto& cells : rows) table += row(cells, widths);
  return table;
}

// Cuts into more stages than ranks: stage s runs on rank s mod R, as in interleaved schedules, and the objective is the sum per rank, which
// depends on all cuts at once, so that there is no short dynamic program.
//
// Steps: (1) climb from every start: move one cut, or all cuts from one on, by 1, 2, 4, ... layers as long as that helps; (2) enumerate all
// cuts, pruning those whose ranks are already slower or larger than the best, up to kMostSteps. Where step 2 ends the result is proved the
// best. Transfers between two stages of one rank are free.
namespace {

constexpr int64_t kMostSteps = 5'000'000;        // Layers visited: some hundredths of a second.
constexpr int64_t kMostClimbSteps = 15'000'000;  // Some tenths of a second.

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
  using Score = std::tuple<int64_t, double, double>;  // Bytes over the limit, bottleneck, sum of transfers; compared in this order.

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

  /// Enumerates all cuts that extend current_, whose last stage is open.
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

  /// Without transfers, and with a tolerance for rounding.
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
  std::vector<double> rank_seconds_;  // Sums over the stages of current_ except the last.
  std::vector<int64_t> rank_bytes_;
};

}  // namespace

FoundSplit search_dealt_split(const SplitCosts& costs, int64_t memory_limit_bytes, const std::vector<std::vector<int>>& starts) {
  return DealtSearch(costs, memory_limit_bytes).run(starts);
}

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

// split=auto: the cut with the least simulated time of a step. Where ranks have several stages, cuts with equal sums per rank differ: a
// small first stage lets other ranks start early, a large last one delays them.
//
// Up to kMostCuts cuts all are tried; otherwise a descent from each start takes the best move of one boundary by one or two layers as long
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
      fail(ErrorCode::kBadInput, "improve_split: invalid start: not a cut of ", num_layers, " layers into ", starts.front().size(),
           " stages");
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
