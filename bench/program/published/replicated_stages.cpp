// The chain of stages, each with replicas, whose slowest part takes least time.
//
// For a limit tau on the time of everything, fewest(J) is the least number of machines on which the nodes of downset J run as stages
// that all keep tau:   fewest(J) = min over downsets I inside of J of fewest(I) + replicas(I, J),
// where replicas(I, J) is the least r for which stage J - I and its transfers keep tau. It has a closed form: with T seconds and c =
// 4 W / bandwidth the stage keeps tau when tau r^2 - (T + c) r + c >= 0. A plan exists when fewest(everything) <= machines. Bisection
// over tau, in which a plan that is found lowers the upper end to its own objective, ends when the ends meet to 1e-9; then the plan is
// the optimum over these downsets.
//
// What keeps it fast: a downset J is left out when its transfer needs more machines than there are, and may use no more machines than
// leave enough for the rest (its seconds over tau, or the replicas that take its transfer in). A pair (I, J) is looked at only if it would
// improve fewest(J) even at perfect speed-up: one comparison, before the test whether I lies in J.
//
// Cost: (pairs of downsets) x (some 30 limits), most pairs for one comparison. Memory: the downsets.
// Source: Narayanan et al. 2019, "PipeDream", section 3.1, has the objective and a programme over (range, machines), whose states hold
// the best time for each number of machines. Turning it round (least machines for a time) is ours: it takes out the loops over machines.
#include "bench/program/published/replicated_stages.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

namespace cohort {
namespace {

constexpr double kClose = 1e-9;
constexpr double kRounding = 1e-12;  // Bounds that prune give way by this, so that rounding never prunes a plan.

class Limit {
 public:
  Limit(const Downsets& sets, const CutCosts& costs, const MachineLevel& level, double seconds)
      : sets_(sets), costs_(costs), level_(level), limit_(seconds), all_(sets.size() - 1) {}

  /// Empty if there is no plan, or time was up.
  std::optional<std::vector<ReplicatedStage>> stages(SearchClock::time_point deadline) {
    find_states();
    for (size_t from = 0; from + 1 < states_.size(); ++from) {
      if (states_[from].fewest > states_[from].most) continue;
      if (SearchClock::now() > deadline) {
        out_of_time_ = true;
        return std::nullopt;
      }
      extend(from);
    }
    if (states_.back().fewest > states_.back().most) return std::nullopt;
    return chain();
  }
  bool out_of_time() const { return out_of_time_; }

 private:
  struct State {
    size_t set = 0;
    double seconds = 0;
    int transfer_replicas = 0;  // Needed for its crossing bytes.
    int most = 0, fewest = 0;   // Machines; fewest > most: not reached.
    size_t before = 0;
  };

  int at_most_all(double replicas) const { return replicas > level_.machines ? level_.machines + 1 : static_cast<int>(replicas); }

  int transfer_replicas(double crossing_bytes) const {
    int replicas = std::max(1, at_most_all(std::floor(level_.transfer_seconds(crossing_bytes, 1) / limit_ * (1 - kRounding))));
    while (replicas <= level_.machines && level_.transfer_seconds(crossing_bytes, replicas) > limit_) ++replicas;
    return replicas;
  }

  void find_states() {
    for (size_t set = 0; set <= all_; ++set) {
      State state{.set = set, .seconds = costs_.seconds[set], .transfer_replicas = 1, .most = level_.machines, .fewest = 0, .before = 0};
      if (set != 0 && set != all_) {
        state.transfer_replicas = transfer_replicas(costs_.crossing_bytes[set]);
        const double rest = std::ceil((costs_.seconds[all_] - state.seconds) / limit_ * (1 - kRounding) - kRounding);
        state.most = level_.machines - std::max(state.transfer_replicas, at_most_all(rest));
        if (state.most < 1) continue;
      }
      if (set != 0) state.fewest = state.most + 1;
      states_.push_back(state);
    }
  }

  void extend(size_t from) {
    const State& begin = states_[from];
    for (size_t to = from + 1; to < states_.size(); ++to) {
      State& end = states_[to];
      const int most = end.fewest - 1 - begin.fewest;
      const double seconds = end.seconds - begin.seconds;
      if (most < 1 || seconds * (1 - kRounding) > most * limit_ || !sets_.is_subset(begin.set, end.set)) continue;
      const int replicas = fewest_replicas(begin, end, seconds, most);
      if (replicas > most) continue;
      end.fewest = begin.fewest + replicas;
      end.before = from;
    }
  }

  /// The least replicas that keep the limit; more than `most` if even these do not.
  int fewest_replicas(const State& begin, const State& end, double seconds, int most) const {
    int replicas = 1;
    if (begin.set != 0) replicas = std::max(begin.transfer_replicas, end.set == all_ ? 1 : end.transfer_replicas);
    const double bytes = costs_.parameter_bytes[end.set] - costs_.parameter_bytes[begin.set];
    if (replicas > most || level_.stage_seconds(seconds, bytes, replicas) <= limit_) return replicas;
    const double exchange = 4 * bytes / level_.bytes_per_second, b = seconds + exchange;
    const double root = (b + std::sqrt(std::max(0.0, b * b - 4 * limit_ * exchange))) / (2 * limit_);
    replicas = std::max(replicas + 1, at_most_all(std::floor(root * (1 - kRounding))));
    while (replicas <= most && level_.stage_seconds(seconds, bytes, replicas) > limit_) ++replicas;
    return replicas;
  }

  std::vector<ReplicatedStage> chain() const {
    std::vector<ReplicatedStage> stages;
    for (size_t at = states_.size() - 1; at != 0; at = states_[at].before) {
      const State& end = states_[at];
      const State& begin = states_[end.before];
      stages.push_back({.begin = begin.set, .end = end.set, .replicas = end.fewest - begin.fewest});
    }
    std::reverse(stages.begin(), stages.end());
    return stages;
  }

  const Downsets& sets_;
  const CutCosts& costs_;
  const MachineLevel& level_;
  double limit_;
  size_t all_;
  bool out_of_time_ = false;
  std::vector<State> states_;
};

double slowest(const std::vector<ReplicatedStage>& stages, const CutCosts& costs, const MachineLevel& level) {
  double worst = 0;
  for (const ReplicatedStage& stage : stages) {
    const double bytes = costs.parameter_bytes[stage.end] - costs.parameter_bytes[stage.begin];
    worst = std::max(worst, level.stage_seconds(costs.seconds[stage.end] - costs.seconds[stage.begin], bytes, stage.replicas));
    if (stage.begin == 0) continue;
    worst = std::max(worst, level.transfer_seconds(costs.crossing_bytes[stage.begin], stage.replicas));
    if (&stage != &stages.back()) worst = std::max(worst, level.transfer_seconds(costs.crossing_bytes[stage.end], stage.replicas));
  }
  return worst;
}

/// One stage with all nodes, on one machine or on all: no number between is faster.
StageSearch one_stage(const CutCosts& costs, const MachineLevel& level) {
  StageSearch best;
  for (const int replicas : {1, level.machines}) {
    const std::vector<ReplicatedStage> stages{{.begin = 0, .end = costs.seconds.size() - 1, .replicas = replicas}};
    const double objective = slowest(stages, costs, level);
    if (best.stages.empty() || objective < best.objective) best = {.stages = stages, .objective = objective, .proven_seconds = 0};
  }
  return best;
}

}  // namespace

StageSearch search_replicated_stages(const Downsets& sets, const CutCosts& costs, const MachineLevel& level, double lower_bound,
                                     double known, SearchClock::time_point deadline) {
  StageSearch best = one_stage(costs, level);
  bool first = known <= best.objective;  // A good plan is often the best: its limit is tried first.
  if (first) best = {.stages = {}, .objective = known, .proven_seconds = 0};
  best.proven_seconds = std::min(lower_bound, best.objective);
  while (best.objective > best.proven_seconds * (1 + kClose)) {
    const double limit = first ? best.objective * (1 - kClose / 2) : std::sqrt(best.objective) * std::sqrt(best.proven_seconds);
    first = false;
    Limit search(sets, costs, level, limit);
    const auto stages = search.stages(deadline);
    if (search.out_of_time()) break;
    if (stages) {
      best.stages = *stages;
      best.objective = slowest(*stages, costs, level);
    } else {
      best.proven_seconds = limit;
    }
  }
  return best;
}

// Two levels of machines, boxes of machines: stages on boxes, each of them a chain of stages on the machines of a box.
//
// best(I, J) is the least slowest time of a chain of nodes J - I on one box. The slowest time of an outer stage on r boxes is
// (best(I, J) + e) / r, with the outer exchange e = 4 (r - 1) W / (bandwidth r), in the first stage divided by the machines of a box, and
// for all but the first its transfers. For a fixed beginning I,
//   inner(K, k) = min over I in K' in K and replicas r of max(inner(K', k - r), time of stage K - K' on r machines);
// best(I, J) = inner(J, machines of a box). The outer chain is the same programme with best in place of the stage's seconds.
//
//  1. Everything on one outer stage gives a plan, whose objective is an upper limit.
//  2. Beginnings are taken from small to large, so outer(I, r), the best plan of I on r boxes, is final when I's turn comes; beginnings
//     that no outer plan below the limit reaches have no turn. Inner cells that are above what the outer level could use are not kept.
//  3. The limit falls with each plan for everything.
//
// Cost: for each beginning that is reached, pairs of downsets after it times machines^2 / 2 of a box; out of time, the best so far.
// Source: Narayanan et al. 2019, "PipeDream", section 3.1 (levels), and the sources' optimizer for what is divided and counted where. It
// joins states of branches that do not follow each other; here all chains are of nested downsets.
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class Search {
 public:
  Search(const Downsets& sets, const CutCosts& costs, const MachineLevel& inner, const MachineLevel& outer)
      : sets_(sets), costs_(costs), inner_level_(inner), outer_level_(outer), all_(sets.size() - 1) {
    outer_.assign(sets.size() * (outer.machines + 1), Cell{});
    outer_[0].seconds = 0;
  }

  NestedSearch run(double lower_bound, double known, SearchClock::time_point deadline) {
    limit_ = known;
    seed();
    bool done = true;
    for (size_t begin = 0; begin < all_ && done; ++begin) {
      if (begin > 0 && SearchClock::now() > deadline) done = false;
      spread(&cell(begin, 0), outer_level_.machines);
      if (done && is_promising(begin)) take_turn(begin);
    }
    NestedSearch result{.stages = {}, .objective = limit_, .proven_seconds = done ? limit_ : std::min(lower_bound, limit_)};
    const bool found = cell(all_, outer_level_.machines).seconds <= limit_;
    result.stages = found ? outer_chain() : seed_;
    return result;
  }

 private:
  struct Cell {
    double seconds = kInfinity;
    size_t begin = 0;  // Begin of the last stage,
    int replicas = 0;  // and its machines or boxes.
  };

  Cell& cell(size_t set, int boxes) { return outer_[set * (outer_level_.machines + 1) + boxes]; }
  double seconds(size_t begin, size_t end) const { return costs_.seconds[end] - costs_.seconds[begin]; }
  double bytes(size_t begin, size_t end) const { return costs_.parameter_bytes[end] - costs_.parameter_bytes[begin]; }

  /// One inner stage on one outer stage, with the best replicas of each, as a first limit.
  void seed() {
    for (const int machines : {1, inner_level_.machines})
      for (const int boxes : {1, outer_level_.machines}) {
        const double time = outer_seconds(0, all_, boxes, inner_level_.stage_seconds(seconds(0, all_), bytes(0, all_), machines));
        if (time >= limit_) continue;
        limit_ = time;
        seed_ = {{.replicas = boxes, .stages = {{.begin = 0, .end = all_, .replicas = machines}}}};
      }
  }

  /// Seconds of an outer stage whose chain takes `busy` seconds on a box.
  double outer_seconds(size_t begin, size_t end, int boxes, double busy) const {
    double exchange = 4 * (boxes - 1.0) * bytes(begin, end) / (outer_level_.bytes_per_second * boxes);
    if (begin == 0) exchange /= inner_level_.machines;
    double time = (busy + exchange) / boxes;
    if (begin == 0) return time;
    time = std::max(time, outer_level_.transfer_seconds(costs_.crossing_bytes[begin], boxes));
    return end == all_ ? time : std::max(time, outer_level_.transfer_seconds(costs_.crossing_bytes[end], boxes));
  }

  /// Seconds of a stage inside a box, in a chain that begins at `chain`.
  double inner_seconds(size_t chain, size_t begin, size_t end, int machines) const {
    double time = inner_level_.stage_seconds(seconds(begin, end), bytes(begin, end), machines);
    if (begin == chain) return time;
    time = std::max(time, inner_level_.transfer_seconds(costs_.crossing_bytes[begin], machines));
    return end == all_ ? time : std::max(time, inner_level_.transfer_seconds(costs_.crossing_bytes[end], machines));
  }

  /// Whether a plan below the limit may go on from here: by what is reached, the rest's share of all machines left, and its transfer in.
  bool is_promising(size_t begin) {
    if (begin == 0) return true;
    for (int used = 1; used < outer_level_.machines; ++used) {
      const int left = outer_level_.machines - used;
      const double rest = seconds(begin, all_) / left / inner_level_.machines * (1 - 1e-12);
      if (std::max({cell(begin, used).seconds, rest, outer_level_.transfer_seconds(costs_.crossing_bytes[begin], left)}) < limit_)
        return true;
    }
    return false;
  }

  void take_turn(size_t begin) {
    fill_inner(begin);
    for (size_t i = 1; i < above_.size(); ++i) extend_outer(begin, above_[i], inner_[i * width() + inner_level_.machines].seconds);
    spread(&cell(all_, 0), outer_level_.machines);
    limit_ = std::min(limit_, cell(all_, outer_level_.machines).seconds);
  }

  size_t width() const { return inner_level_.machines + 1; }

  /// Cells of chains from `chain` to each downset above it, on 1 to all machines of a box.
  void fill_inner(size_t chain) {
    above_.clear();
    for (size_t set = chain; set <= all_; ++set)
      if (sets_.is_subset(chain, set)) above_.push_back(set);
    inner_.assign(above_.size() * width(), Cell{});
    std::fill(inner_.begin(), inner_.begin() + width(), Cell{.seconds = 0, .begin = 0, .replicas = 0});
    const double useful = limit_ * outer_level_.machines;
    for (size_t from = 0; from < above_.size(); ++from) {
      spread(&inner_[from * width()], inner_level_.machines);
      if (inner_[from * width() + inner_level_.machines].seconds >= useful) continue;
      for (size_t to = from + 1; to < above_.size(); ++to) extend_inner(chain, from, to, useful);
    }
  }

  void extend_inner(size_t chain, size_t from, size_t to, double useful) {
    const size_t begin = above_[from], end = above_[to];
    const int most = inner_level_.machines - (from != 0);
    const double perfect = seconds(begin, end) / most;
    const Cell* const behind = &inner_[from * width()];
    Cell* const ahead = &inner_[to * width()];
    if (perfect >= std::min(useful, ahead[1].seconds) || !sets_.is_subset(begin, end)) return;
    for (int machines = 1; machines <= most; ++machines) {
      const double time = inner_seconds(chain, begin, end, machines);
      if (time >= useful) continue;
      go_on(behind, ahead, from, machines, inner_level_.machines, time);
    }
  }

  void extend_outer(size_t begin, size_t end, double busy) {
    if (busy == kInfinity) return;
    for (int boxes = 1; boxes <= outer_level_.machines - (begin != 0); ++boxes) {
      const double time = outer_seconds(begin, end, boxes, busy);
      if (time >= limit_) continue;
      go_on(&cell(begin, 0), &cell(end, 0), begin, boxes, outer_level_.machines, time);
    }
  }

  /// One more stage of `time` on `machines` behind the chains of `behind`, which end at `begin`; `all`: machines of the level.
  static void go_on(const Cell* behind, Cell* ahead, size_t begin, int machines, int all, double time) {
    for (int used = begin == 0 ? 0 : 1; used + machines <= all; ++used) {
      const double slowest = std::max(behind[used].seconds, time);
      if (slowest < ahead[used + machines].seconds) ahead[used + machines] = {slowest, begin, machines};
    }
  }

  /// The answer may use fewer machines than there are.
  static void spread(Cell* cells, int machines) {
    for (int i = 2; i <= machines; ++i)
      if (cells[i - 1].seconds < cells[i].seconds) cells[i] = cells[i - 1];
  }

  std::vector<NestedStage> outer_chain() {
    limit_ = kInfinity;
    std::vector<NestedStage> stages;
    size_t end = all_;
    for (int boxes = outer_level_.machines; end != 0;) {
      const Cell last = cell(end, boxes);
      stages.push_back({.replicas = last.replicas, .stages = inner_chain(last.begin, end)});
      end = last.begin;
      boxes -= last.replicas;
    }
    std::reverse(stages.begin(), stages.end());
    return stages;
  }

  std::vector<ReplicatedStage> inner_chain(size_t begin, size_t end) {
    fill_inner(begin);
    size_t at = std::lower_bound(above_.begin(), above_.end(), end) - above_.begin();
    std::vector<ReplicatedStage> stages;
    for (int machines = inner_level_.machines; at != 0;) {
      const Cell last = inner_[at * width() + machines];
      stages.push_back({.begin = above_[last.begin], .end = above_[at], .replicas = last.replicas});
      at = last.begin;
      machines -= last.replicas;
    }
    std::reverse(stages.begin(), stages.end());
    return stages;
  }

  const Downsets& sets_;
  const CutCosts& costs_;
  const MachineLevel &inner_level_, &outer_level_;
  size_t all_;
  double limit_ = kInfinity;
  std::vector<NestedStage> seed_;
  std::vector<Cell> outer_, inner_;
  std::vector<size_t> above_;  // Downsets above the beginning of the turn, itself first.
};

}  // namespace

NestedSearch search_nested_stages(const Downsets& sets, const CutCosts& costs, const MachineLevel& inner, const MachineLevel& outer,
                                  double lower_bound, double known, SearchClock::time_point deadline) {
  return Search(sets, costs, inner, outer).run(lower_bound, known, deadline);
}

}  // namespace cohort
