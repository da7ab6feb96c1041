#include "cohort/plan/search/load_problem.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace cohort {

std::vector<double> loads_of(const LoadProblem& problem, const Placement& placement) {
  std::vector<double> loads(problem.num_parts());
  for (size_t i = 0; i < placement.size(); ++i) loads[placement[i]] += problem.work_on(placement[i], static_cast<int>(i));
  for (const LoadProblem::Net& net : problem.nets) {
    std::set<int> parts;
    for (const int pin : net.pins) parts.insert(placement[pin]);
    if (parts.size() < 2) continue;
    for (const int part : parts)
      if (!problem.is_cpu(part)) loads[part] += net.cost;
  }
  return loads;
}

double largest_load(const LoadProblem& problem, const Placement& placement) {
  const std::vector<double> loads = loads_of(problem, placement);
  return *std::max_element(loads.begin(), loads.end());
}

bool fits(const LoadProblem& problem, const Placement& placement) {
  std::vector<double> bytes(problem.num_parts());
  for (size_t i = 0; i < placement.size(); ++i) {
    bytes[placement[i]] += problem.items[i].bytes;
    if (!std::isfinite(problem.work_on(placement[i], static_cast<int>(i)))) return false;
  }
  for (int part = 0; part < problem.num_accelerators; ++part)
    if (bytes[part] > problem.memory_bytes) return false;
  return true;
}

double work_that_cpus_take(const LoadProblem& problem, double seconds) {
  std::vector<const LoadProblem::Item*> best_first;
  double left = seconds * problem.num_cpus, taken = 0;
  if (problem.num_cpus == 0) return 0;
  for (const LoadProblem::Item& item : problem.items)
    if (item.work > 0 && item.cpu_work <= seconds && std::isfinite(item.work)) best_first.push_back(&item);
  std::sort(best_first.begin(), best_first.end(),
            [](const auto* a, const auto* b) { return a->work * b->cpu_work > b->work * a->cpu_work; });
  for (const LoadProblem::Item* item : best_first) {
    const double share = item->cpu_work <= left ? 1 : left / item->cpu_work;
    taken += share * item->work;
    left -= share * item->cpu_work;
    if (share < 1) break;
  }
  return taken;
}

}  // namespace cohort
