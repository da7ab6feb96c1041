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

#include "cohort/bench/published/replicated_stages.h"

#include <algorithm>
#include <limits>

namespace cohort {
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
    size_t begin = 0;  // Of the last stage,
    int replicas = 0;  // and its machines or boxes.
  };

  Cell& cell(size_t set, int boxes) { return outer_[set * (outer_level_.machines + 1) + boxes]; }
  double seconds(size_t begin, size_t end) const { return costs_.seconds[end] - costs_.seconds[begin]; }
  double bytes(size_t begin, size_t end) const { return costs_.parameter_bytes[end] - costs_.parameter_bytes[begin]; }

  /// Everything in one inner stage on one outer stage, with the best replicas of each: a first limit.
  void seed() {
    for (const int machines : {1, inner_level_.machines})
      for (const int boxes : {1, outer_level_.machines}) {
        const double time = outer_seconds(0, all_, boxes, inner_level_.stage_seconds(seconds(0, all_), bytes(0, all_), machines));
        if (time >= limit_) continue;
        limit_ = time;
        seed_ = {{.replicas = boxes, .stages = {{.begin = 0, .end = all_, .replicas = machines}}}};
      }
  }

  /// Of an outer stage whose chain takes `busy` seconds on a box.
  double outer_seconds(size_t begin, size_t end, int boxes, double busy) const {
    double exchange = 4 * (boxes - 1.0) * bytes(begin, end) / (outer_level_.bytes_per_second * boxes);
    if (begin == 0) exchange /= inner_level_.machines;
    double time = (busy + exchange) / boxes;
    if (begin == 0) return time;
    time = std::max(time, outer_level_.transfer_seconds(costs_.crossing_bytes[begin], boxes));
    return end == all_ ? time : std::max(time, outer_level_.transfer_seconds(costs_.crossing_bytes[end], boxes));
  }

  /// Of a stage inside of a box, in a chain that begins at `chain`.
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
      for (int used = from == 0 ? 0 : 1; used + machines <= inner_level_.machines; ++used) {
        const double slowest = std::max(behind[used].seconds, time);
        if (slowest < ahead[used + machines].seconds) ahead[used + machines] = {slowest, from, machines};
      }
    }
  }

  void extend_outer(size_t begin, size_t end, double busy) {
    if (busy == kInfinity) return;
    for (int boxes = 1; boxes <= outer_level_.machines - (begin != 0); ++boxes) {
      const double time = outer_seconds(begin, end, boxes, busy);
      if (time >= limit_) continue;
      for (int used = begin == 0 ? 0 : 1; used + boxes <= outer_level_.machines; ++used) {
        const double slowest = std::max(cell(begin, used).seconds, time);
        if (slowest < cell(end, used + boxes).seconds) cell(end, used + boxes) = {slowest, begin, boxes};
      }
    }
  }

  /// Fewer machines than there are may be used.
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
