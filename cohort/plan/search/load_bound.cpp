// Lower bounds of the largest load: for which T can it be proved in milliseconds that no plan has all loads at most T?
//
// A plan below T keeps the pins of expensive nets together (load_contract.cpp), so what has to be placed are larger pieces. Then, each
// by its own argument, there is no plan where
//   largest piece  some piece takes more than T on an accelerator (or does not fit it) and on a CPU core;
//   area           the pieces' work is more than k T and what CPU cores can take;
//   memory         the bytes are more than k memories and what CPU cores can take of them;
//   bin packing    the same as area for work made uneven by a dual feasible function: u_m(x) = floor(x (m + 1)) / m where
//                  x (m + 1) is not whole. With x = work / T every set of pieces that fits an accelerator adds up to at most 1 (Fekete and
//                  Schepers, "New classes of fast lower bounds for bin packing problems", Math. Programming 91, 2001).
// What is proved for T holds for all below, so the bound is found by bisection, for the weakest argument first: the first that reaches a
// value names it. Cost: 40 contractions.

#include "cohort/plan/search/load_bound.h"

#include <algorithm>
#include <cmath>

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

}  // namespace cohort
