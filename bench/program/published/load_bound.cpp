// Lower bounds of the largest load, and plans below a load by trying all. Bounds: for which T can it be proved in milliseconds that no plan
// has all loads at most T?
//
// A plan below T keeps the pins of expensive nets together (load_problem.cpp), so what has to be placed are larger pieces. Then, each
// by its own argument, there is no plan where
//   largest piece  some piece takes more than T on an accelerator (or does not fit it) and on a CPU core;
//   area           the pieces' work is more than k T and what CPU cores can take;
//   memory         the bytes are more than k memories and what CPU cores can take of them;
//   bin packing    the same as area for work made uneven by a dual feasible function: u_m(x) = floor(x (m + 1)) / m where
//                  x (m + 1) is not whole. With x = work / T every set of pieces that fits an accelerator adds up to at most 1 (Fekete and
//                  Schepers, "New classes of fast lower bounds for bin packing problems", Math. Programming 91, 2001).
// What is proved for T holds for all below, so the bound is found by bisection, for the weakest argument first: the first that reaches a
// value names it. Cost: 40 contractions.

#include <algorithm>
#include <cmath>
#include <utility>

#include "bench/program/published/load_search.h"

namespace cohort {
namespace {

/// The same pieces with other work; `shares` are at most 1 an accelerator, in units of it.
bool is_too_much(const LoadProblem& problem, const std::vector<double>& shares, double seconds) {
  LoadProblem uneven = problem;
  double sum = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    const bool only_cpu = !std::isfinite(problem.items[i].work);
    uneven.items[i].work = only_cpu ? 0 : shares[i];
    sum += uneven.items[i].work;
  }
  return sum - work_that_cpus_take(uneven, seconds) > problem.num_accelerators * (1 + 1e-9) + 1e-12;
}

bool has_too_large_a_piece(const LoadProblem& problem, double seconds) {
  const double most = seconds * (1 + 1e-9);
  return std::any_of(problem.items.begin(), problem.items.end(), [&](const LoadProblem::Item& item) {
    const bool on_accelerator = item.work <= most && item.bytes <= problem.memory_bytes;
    return !on_accelerator && !(problem.num_cpus > 0 && item.cpu_work <= most);
  });
}

bool has_too_much_work(const LoadProblem& problem, double seconds) {
  std::vector<double> shares;
  for (const LoadProblem::Item& item : problem.items) shares.push_back(item.work / seconds);
  return is_too_much(problem, shares, seconds);
}

bool has_too_many_bytes(const LoadProblem& problem, double seconds) {
  if (!(problem.memory_bytes > 0)) return false;
  std::vector<double> shares;
  for (const LoadProblem::Item& item : problem.items) shares.push_back(item.bytes / problem.memory_bytes);
  return is_too_much(problem, shares, seconds);
}

/// Rounded so that an x of a whole number of parts counts one part less: too little is proved rather than too much.
double uneven_share(double x, int m) { return std::floor(x * (m + 1) * (1 - 1e-9)) / m; }

bool has_too_many_pieces(const LoadProblem& problem, double seconds) {
  for (int m = 1; m <= 40; ++m) {
    std::vector<double> shares;
    for (const LoadProblem::Item& item : problem.items) shares.push_back(uneven_share(item.work / seconds, m));
    if (is_too_much(problem, shares, seconds)) return true;
  }
  return false;
}

using Argument = bool (*)(const LoadProblem&, double);

/// The largest T in [known, most] for which the argument holds.
double raise(const LoadProblem& problem, Argument holds, bool contracted, double known, double most) {
  const auto proved = [&](double seconds) {
    return contracted ? holds(contract_below(problem, seconds).problem, seconds) : holds(problem, seconds);
  };
  double low = known, high = most;
  for (int i = 0; i < 40 && high - low > 1e-10 * high; ++i) {
    const double middle = (low + high) / 2;
    (proved(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace

Bound lower_bound(const LoadProblem& problem, double most_load) {
  struct Step {
    const char* name;
    Argument holds;
    bool contracted;
  };
  const Step steps[] = {{"area", has_too_much_work, false},         {"largest piece", has_too_large_a_piece, false},
                        {"memory", has_too_many_bytes, false},      {"bin packing", has_too_many_pieces, false},
                        {"transfers", has_too_large_a_piece, true}, {"transfers", has_too_much_work, true},
                        {"transfers", has_too_many_pieces, true}};
  Bound best = {0, "area"};
  for (const Step& step : steps) {
    const double value = raise(problem, step.holds, step.contracted, best.value, most_load);
    if (value > best.value * (1 + 1e-9)) best = {value, step.name};
  }
  return best;
}

// Is there a plan whose loads are all at most T? Depth-first over the pieces of contract_below(), largest first, each tried on each part.
//
// A branch ends where a load is above T: work of what is placed, and the cost of every net that already lies on two parts; or where the
// work that is not yet placed is more than what the loads leave. Of accelerators that are still empty only the first is tried, as they
// are alike. A net's unplaced pins can only add to it, so both tests hold for all that the branch may become, and an exhausted search is
// a proof. Pieces come in the order of a walk: next is the one with the most transfers to those placed, then the most work; so nets
// close early. Cost: exponential; it gives up after `most_steps` placements.

namespace {

class Exhaustive {
 public:
  Exhaustive(const LoadProblem& problem, double most_load, int64_t most_steps)
      : problem_(problem), most_load_(most_load * (1 + 1e-10)), steps_left_(most_steps), placement_(problem.items.size(), -1) {
    const auto num_parts = static_cast<size_t>(problem.num_parts());
    loads_.resize(num_parts), bytes_.resize(num_parts), held_.resize(num_parts);
    count_.resize(problem.nets.size() * num_parts), span_.resize(problem.nets.size()), nets_of_.resize(problem.items.size());
    for (size_t n = 0; n < problem.nets.size(); ++n)
      for (const int pin : problem.nets[n].pins) nets_of_[pin].push_back(static_cast<int>(n));
    find_order();
  }

  LoadVerdict run(Placement* found) {
    if (!place_from(0)) return steps_left_ > 0 ? LoadVerdict::kNone : LoadVerdict::kUnknown;
    *found = placement_;
    return LoadVerdict::kFound;
  }

 private:
  void find_order() {
    const size_t n = problem_.items.size();
    std::vector<double> tie(n);
    std::vector<bool> taken(n), reached(problem_.nets.size());
    const auto weight = [&](size_t i) {
      return std::isfinite(problem_.items[i].work) ? problem_.items[i].work : problem_.items[i].cpu_work;
    };
    while (order_.size() < n) {
      size_t next = n;
      for (size_t i = 0; i < n; ++i)
        if (!taken[i] && (next == n || tie[i] + weight(i) > tie[next] + weight(next))) next = i;
      taken[next] = true;
      order_.push_back(static_cast<int>(next));
      for (const int net : nets_of_[next]) {
        if (reached[net]) continue;
        reached[net] = true;
        for (const int pin : problem_.nets[net].pins) tie[pin] += problem_.nets[net].cost;
      }
    }
    // Work behind each place of the order, as a problem of its own for the share of the CPU cores.
    work_after_.assign(n + 1, 0);
    LoadProblem rest = problem_;
    rest.items.clear();
    double sum = 0;
    for (size_t place = n; place-- > 0;) {
      const LoadProblem::Item& item = problem_.items[order_[place]];
      if (std::isfinite(item.work)) sum += item.work;
      rest.items.push_back(item);
      work_after_[place] = sum - (n <= 600 ? work_that_cpus_take(rest, most_load_) : problem_.num_cpus * sum);
    }
  }

  bool place_from(size_t place) {
    if (place == order_.size()) return true;
    const int item = order_[place];
    bool tried_empty = false, tried_empty_cpu = false;
    for (const int part : parts_by_affinity(item)) {
      bool& tried = problem_.is_cpu(part) ? tried_empty_cpu : tried_empty;
      if (held_[part] == 0 && std::exchange(tried, true)) continue;
      if (--steps_left_ <= 0) return false;
      if (std::isfinite(problem_.work_on(part, item)) && enter(item, part, place) && place_from(place + 1)) return true;
      if (placement_[item] == part) leave(item, part);
    }
    return false;
  }

  /// Most of the item's nets first, then the least load.
  std::vector<int> parts_by_affinity(int item) const {
    std::vector<std::pair<double, int>> parts;
    for (int part = 0; part < problem_.num_parts(); ++part) {
      double cost = loads_[part] + problem_.work_on(part, item);
      for (const int net : nets_of_[item])
        if (span_[net] > 0 && count_[at(net, part)] == 0) cost += problem_.nets[net].cost;
      parts.emplace_back(cost, part);
    }
    std::sort(parts.begin(), parts.end());
    std::vector<int> order;
    for (const auto& [cost, part] : parts) order.push_back(part);
    return order;
  }

  size_t at(int net, int part) const { return static_cast<size_t>(net) * loads_.size() + static_cast<size_t>(part); }

  /// False where the branch is dead; the item is placed all the same.
  bool enter(int item, int part, size_t place) {
    placement_[item] = part;
    ++held_[part];
    loads_[part] += problem_.work_on(part, item);
    bytes_[part] += problem_.items[item].bytes;
    for (const int net : nets_of_[item]) {
      if (count_[at(net, part)]++ > 0) continue;
      if (++span_[net] == 2) pay(other_of(net, part), problem_.nets[net].cost);
      if (span_[net] >= 2) pay(part, problem_.nets[net].cost);
    }
    double room = 0;
    for (int p = 0; p < problem_.num_parts(); ++p) {
      if (loads_[p] > most_load_) return false;
      if (!problem_.is_cpu(p)) room += most_load_ - loads_[p];
    }
    return (problem_.is_cpu(part) || bytes_[part] <= problem_.memory_bytes) && work_after_[place + 1] <= room * (1 + 1e-9);
  }

  void leave(int item, int part) {
    for (size_t i = nets_of_[item].size(); i-- > 0;) {
      const int net = nets_of_[item][i];
      if (--count_[at(net, part)] > 0) continue;
      if (span_[net] >= 2) pay(part, -problem_.nets[net].cost);
      if (span_[net]-- == 2) pay(other_of(net, part), -problem_.nets[net].cost);
    }
    bytes_[part] -= problem_.items[item].bytes;
    loads_[part] -= problem_.work_on(part, item);
    --held_[part];
    placement_[item] = -1;
  }

  void pay(int part, double cost) { loads_[part] += problem_.is_cpu(part) ? 0 : cost; }

  int other_of(int net, int part) const {
    for (int p = 0; p < problem_.num_parts(); ++p)
      if (p != part && count_[at(net, p)] > 0) return p;
    return part;
  }

  const LoadProblem& problem_;
  double most_load_;
  int64_t steps_left_;
  Placement placement_;
  std::vector<int> order_;
  std::vector<double> work_after_;  ///< Work of the accelerators after a place of the order, without what CPU cores take.
  std::vector<double> loads_, bytes_;
  std::vector<int> held_, count_, span_;
  std::vector<std::vector<int>> nets_of_;
};

}  // namespace

LoadVerdict search_all(const LoadProblem& problem, double most_load, int64_t most_steps, Placement* found) {
  const Contraction smaller = contract_below(problem, most_load);
  const double size = static_cast<double>(smaller.problem.items.size()),
               cells = static_cast<double>(smaller.problem.nets.size()) * problem.num_parts();
  if (size > 5000 || cells > 2e7) return LoadVerdict::kUnknown;  // Hopeless, and deep.
  Placement narrow;
  const LoadVerdict verdict = Exhaustive(smaller.problem, most_load, most_steps).run(&narrow);
  if (verdict == LoadVerdict::kFound) *found = smaller.widen(narrow);
  return verdict;
}

}  // namespace cohort
