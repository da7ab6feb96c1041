// The search for a plan with the least largest load, and its certificate.
//
//   1. A first plan: the best cut of the given order into runs (cut_order).
//   2. Rounds of annealing (load_anneal.cpp). Each begins with what must stay together in a better plan joined (load_problem.cpp). Three
//      of four also join what a move can only make better, and start from nothing on a still coarser problem, where all nets above a random
//      cost are joined, and go on with what comes of it in the finer one: a move there is a move of whole blocks, which single items would
//      have to pass through bad plans for. The fourth joins what two good plans agree on, anneals those
//      blocks, and goes on from there with the items.
//   3. Bounds (load_bound.cpp); the search ends where the plan meets them.
//   4. Trying all (load_bound.cpp) for a plan that is better by 1e-9: found, it is the new plan; proved absent, the plan is optimal. Left
//      open, the same for loads between bound and plan raises the bound.
// Cost: `steps` changes of a placement, 0.2 to 0.5 microseconds each.

#include "bench/program/published/load_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <utility>

#include "cohort/base/clock.h"

namespace cohort {

// Cuts an order of the items into runs, one an accelerator, so that the largest load is least: a first plan for the search.
//
// best[d][j] = min over i of max(best[d - 1][i], load of items [i, j)), by dynamic programming. A run that does not fit in memory counts
// as a load that is a million times what all takes, so that without a cut that fits the least wrong one comes out. The load of a run that
// grows item by item costs the nets of the items. Cost: O(n (pins + n k)); above 4096 items they are first joined in blocks of equal
// length. It is the linearised dynamic program of Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators"
// (NeurIPS 2020, section 5), without CPU cores.

namespace {

class OrderCut {
 public:
  OrderCut(const LoadProblem& problem, const std::vector<int>& order) : problem_(problem), order_(order), nets_of_(problem.items.size()) {
    for (size_t n = 0; n < problem.nets.size(); ++n)
      for (const int pin : problem.nets[n].pins) nets_of_[pin].push_back(static_cast<int>(n));
    for (const LoadProblem::Item& item : problem.items) fine_ += std::isfinite(item.work) ? item.work : 0;
    for (const LoadProblem::Net& net : problem.nets) fine_ += net.cost;
    fine_ = 1e6 * (fine_ + 1);
    block_ = (order.size() + 4095) / 4096;
    num_places_ = (order.size() + block_ - 1) / block_;
  }

  Placement run() {
    fill();
    Placement placement(problem_.items.size(), problem_.num_accelerators);
    size_t end = num_places_;
    for (size_t d = num_runs_; d > 0; --d) {
      const size_t begin = from_[d - 1][end];
      for (size_t at = begin * block_; at < std::min(end * block_, order_.size()); ++at)
        if (std::isfinite(problem_.items[order_[at]].work)) placement[order_[at]] = static_cast<int>(d - 1);
      end = begin;
    }
    return placement;
  }

 private:
  void fill() {
    num_runs_ = std::min<size_t>(static_cast<size_t>(problem_.num_accelerators), std::min<size_t>(num_places_, 256));
    const double none = std::numeric_limits<double>::infinity();
    best_.assign(num_runs_ + 1, std::vector<double>(num_places_ + 1, none));
    from_.assign(num_runs_, std::vector<size_t>(num_places_ + 1, 0));
    best_[0][0] = 0;
    for (size_t begin = 0; begin < num_places_; ++begin) {
      for (size_t d = 1; d <= num_runs_; ++d) relax(d, begin, begin, 0);  // A device may stay empty.
      grow_from(begin);
    }
    for (size_t d = 1; d <= num_runs_; ++d) relax(d, num_places_, num_places_, 0);
  }

  void relax(size_t d, size_t begin, size_t end, double load) {
    const double value = std::max(best_[d - 1][begin], load);
    if (value < best_[d][end]) best_[d][end] = value, from_[d - 1][end] = begin;
  }

  void grow_from(size_t begin) {
    std::vector<int> inside(problem_.nets.size());
    double load = 0, bytes = 0;
    for (size_t end = begin; end < num_places_; ++end) {
      for (size_t at = end * block_; at < std::min((end + 1) * block_, order_.size()); ++at) {
        const int item = order_[at];
        if (!std::isfinite(problem_.items[item].work)) continue;
        load += problem_.items[item].work;
        bytes += problem_.items[item].bytes;
        for (const int n : nets_of_[item]) {
          const LoadProblem::Net& net = problem_.nets[n];
          if (++inside[n] == 1) load += net.cost;
          if (inside[n] == static_cast<int>(net.pins.size())) load -= net.cost;
        }
      }
      const double counted = load + (bytes > problem_.memory_bytes ? fine_ * (bytes / std::max(problem_.memory_bytes, 1.0)) : 0);
      for (size_t d = 1; d <= num_runs_; ++d) relax(d, begin, end + 1, counted);
    }
  }

  const LoadProblem& problem_;
  const std::vector<int>& order_;
  std::vector<std::vector<int>> nets_of_;
  double fine_ = 0;  ///< The penalty of a run that does not fit.
  size_t block_ = 1, num_places_ = 0, num_runs_ = 0;
  std::vector<std::vector<double>> best_;  ///< Indexed by accelerators used and places done.
  std::vector<std::vector<size_t>> from_;
};

}  // namespace

Placement cut_order(const LoadProblem& problem, const std::vector<int>& order) { return OrderCut(problem, order).run(); }

namespace {

LoadSearchOptions with_steps(const LoadProblem& problem, LoadSearchOptions options) {
  const auto n = static_cast<int64_t>(std::min<size_t>(problem.items.size(), 10'000));
  // Less than a second for 180 items, several for more: what annealing needs grows much faster than the problem.
  if (options.steps == 0)
    options.steps = n <= 200 ? std::max<int64_t>(n * n * n * n / 320, 100'000) : std::min<int64_t>(3 * n * n * n, 22'000'000);
  return options;
}

class Search {
 public:
  Search(const LoadProblem& problem, const LoadSearchOptions& options)
      : problem_(problem),
        options_(with_steps(problem, options)),
        deadline_(steady_seconds() + 0.95 * options.search_seconds),
        random_(options.seed) {}

  std::optional<LoadAnswer> run(const std::vector<int>& order) {
    start_ = cut_order(problem_, order);
    take(start_);
    take(Placement(problem_.items.size(), problem_.num_cpus > 0 ? problem_.num_accelerators : 0));
    if (!answer_) repair();
    if (!answer_) return std::nullopt;
    if (!meets_bound()) anneal_rounds();
    if (!answer_->optimal) try_all();
    return answer_;
  }

 private:
  bool take(const Placement& placement) {
    if (placement.empty() || !fits(problem_, placement)) return false;
    const double load = largest_load(problem_, placement);
    if (answer_ && load >= answer_->largest_load) return false;
    if (!answer_) answer_.emplace();
    answer_->placement = placement;
    answer_->largest_load = load;
    return true;
  }

  void repair() {
    for (int round = 0; round < 16 && !answer_; ++round)
      take(anneal_loads(problem_, start_,
                        {.steps = options_.steps / 16, .hot = 0.1 * (1 + round), .seed = random_(), .deadline = deadline_}));
  }

  bool meets_bound() {
    const Bound bound = lower_bound(problem_, answer_->largest_load);
    if (bound.value >= answer_->bound.value) answer_->bound = bound;
    answer_->optimal = answer_->largest_load - answer_->bound.value <= 1e-9 * answer_->largest_load;
    return answer_->optimal;
  }

  /// The best plan in the terms of a contraction that it need not respect.
  static Placement narrow(const Contraction& contraction, const Placement& placement) {
    Placement out(contraction.problem.items.size());
    for (size_t i = placement.size(); i-- > 0;) out[contraction.item_of[i]] = placement[i];
    return out;
  }

  void anneal_rounds() {
    const double goal = answer_->bound.value * (1 + 1e-9), mean_weights[] = {3, 1, 0.3};
    const int64_t per_item = problem_.items.size() <= 200 ? 10'000 : 4'000;  // Large ones gain more from many starts than from long ones.
    const int64_t num_rounds = std::clamp<int64_t>(options_.steps / (per_item * static_cast<int64_t>(problem_.items.size())), 2, 64);
    for (int round = 0; round < num_rounds && steady_seconds() < deadline_ && answer_->largest_load > goal; ++round) {
      const bool fresh = round % 4 != 3;
      Contraction fine = contract_below(problem_, answer_->largest_load * (1 - 1e-9));
      if (round % 2 == 0) fine.further(contract_dominated(fine.problem, answer_->largest_load));
      AnnealOptions anneal = {.steps = options_.steps / num_rounds, .hot = 0.02, .cold = 0.00003, .mean_weight = mean_weights[round % 3]};
      anneal.goal = goal, anneal.deadline = deadline_;
      if (fresh) anneal.steps /= 3;
      Placement start;
      if (fresh && !fine.problem.nets.empty()) start = coarse_plan(fine.problem, anneal);
      else start = narrow(fine, plans_.size() > 1 ? combined_plan(anneal) : answer_->placement);
      anneal.seed = random_();
      if (fresh) anneal.steps *= 2;
      const Placement end = fine.widen(anneal_loads(fine.problem, start, anneal));
      take(end);
      if (fits(problem_, end)) plans_.emplace_back(largest_load(problem_, end), end);
      std::sort(plans_.begin(), plans_.end());
      plans_.erase(std::unique(plans_.begin(), plans_.end()), plans_.end());
      if (plans_.size() > 6) plans_.resize(6);
    }
  }

  /// Joins what two of the best plans agree on: blocks that neither divides and that nets connect.
  Placement combined_plan(AnnealOptions anneal) {
    const size_t a = random_() % plans_.size(), b = (a + 1 + random_() % (plans_.size() - 1)) % plans_.size();
    const Placement &one = plans_[std::min(a, b)].second, &other = plans_[std::max(a, b)].second;
    std::vector<int> block_of(problem_.items.size());
    std::iota(block_of.begin(), block_of.end(), 0);
    const auto root = [&](int item) {
      while (block_of[item] != item) item = block_of[item] = block_of[block_of[item]];
      return item;
    };
    for (const LoadProblem::Net& net : problem_.nets) {
      std::map<std::pair<int, int>, int> first;
      for (const int pin : net.pins) block_of[root(pin)] = root(first.try_emplace({one[pin], other[pin]}, pin).first->second);
    }
    for (int item = 0; item < static_cast<int>(block_of.size()); ++item) block_of[item] = root(item);
    std::map<int, int> number;
    for (int& block : block_of) block = number.try_emplace(block, static_cast<int>(number.size())).first->second;
    const Contraction blocks = contract(problem_, block_of);
    anneal.hot = 0.1, anneal.cold = 0.0003, anneal.steps /= 2, anneal.seed = random_();
    return blocks.widen(anneal_loads(blocks.problem, narrow(blocks, one), anneal));
  }

  Placement coarse_plan(const LoadProblem& problem, AnnealOptions anneal) {
    std::vector<double> costs;
    for (const LoadProblem::Net& net : problem.nets) costs.push_back(net.cost);
    const double cost = costs[random_() % costs.size()], share = 0.1 + 0.9 * static_cast<double>(random_() % 1000) / 1000;
    const Contraction coarse = contract_heavy(problem, cost, share * answer_->largest_load);
    Placement start(coarse.problem.items.size());
    for (size_t i = 0; i < start.size(); ++i) do
        start[i] = static_cast<int>(random_() % static_cast<uint64_t>(problem.num_parts()));
      while (!std::isfinite(coarse.problem.work_on(start[i], static_cast<int>(i))));
    anneal.hot = 0.3, anneal.cold = 0.001, anneal.seed = random_();
    return coarse.widen(anneal_loads(coarse.problem, start, anneal));
  }

  void try_all() {
    int64_t steps = std::max<int64_t>(options_.steps / 8, 600'000);
    if (meets_bound()) return;
    double high = answer_->largest_load * (1 - 1e-9);
    for (int tries = 0; tries < 8 && high > answer_->bound.value && steady_seconds() < deadline_; ++tries) {
      Placement found;
      const LoadVerdict verdict = search_all(problem_, high, steps, &found);
      if (verdict == LoadVerdict::kFound && take(found)) high = answer_->largest_load * (1 - 1e-9);
      else if (verdict == LoadVerdict::kNone) answer_->bound = {high, "search"};
      if (verdict == LoadVerdict::kNone && high >= answer_->largest_load * (1 - 2e-9)) {
        answer_->bound.value = answer_->largest_load;
        answer_->optimal = true;
        return;
      }
      if (verdict != LoadVerdict::kFound) {
        // Between what is proved and what is not: where the answer may still be known.
        if (verdict == LoadVerdict::kUnknown) unknown_ = high;
        high = (answer_->bound.value + unknown_) / 2;
        steps = std::max<int64_t>(options_.steps / 64, 150'000);
      }
    }
  }

  const LoadProblem& problem_;
  LoadSearchOptions options_;
  double deadline_, unknown_ = 0;
  std::mt19937_64 random_;
  Placement start_;
  std::vector<std::pair<double, Placement>> plans_;  ///< The best ends of rounds, best first.
  std::optional<LoadAnswer> answer_;
};

}  // namespace

std::optional<LoadAnswer> search_loads(const LoadProblem& problem, const std::vector<int>& order, const LoadSearchOptions& options) {
  return Search(problem, options).run(order);
}

}  // namespace cohort
