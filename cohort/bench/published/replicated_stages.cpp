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

#include "cohort/bench/published/replicated_stages.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace cohort {
namespace {

constexpr double kClose = 1e-9;
constexpr double kRounding = 1e-12;  // Bounds that prune give way by this, so that rounding never prunes a plan.

class Limit {
 public:
  Limit(const Downsets& sets, const CutCosts& costs, const MachineLevel& level, double seconds)
      : sets_(sets), costs_(costs), level_(level), limit_(seconds), all_(sets.size() - 1) {}

  /// Empty: none, or out of time.
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
    int transfer_replicas = 0;  // For its crossing bytes.
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

  /// Least replicas that keep the limit; more than `most` where that many do not.
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

/// Everything in one stage, on one machine or on all: no number between is faster.
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
  bool first = known <= best.objective;  // A good plan is often the best: ask that first.
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

}  // namespace cohort
