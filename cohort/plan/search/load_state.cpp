#include "cohort/plan/search/load_state.h"

#include <algorithm>
#include <utility>

namespace cohort {

LoadState::LoadState(const LoadProblem& problem, Placement placement)
    : problem_(problem), num_parts_(static_cast<size_t>(problem.num_parts())), nets_of_(problem.items.size()) {
  for (size_t n = 0; n < problem.nets.size(); ++n)
    for (const int pin : problem.nets[n].pins) nets_of_[pin].push_back(static_cast<int>(n));
  restart(placement);
}

void LoadState::restart(const Placement& placement) {
  placement_ = placement;
  loads_ = loads_of(problem_, placement_);
  bytes_.assign(num_parts_, 0);
  count_.assign(problem_.nets.size() * num_parts_, 0);
  span_.assign(problem_.nets.size(), 0);
  for (size_t i = 0; i < placement_.size(); ++i) bytes_[placement_[i]] += problem_.items[i].bytes;
  for (size_t n = 0; n < problem_.nets.size(); ++n)
    for (const int pin : problem_.nets[n].pins) span_[n] += count_[n * num_parts_ + placement_[pin]]++ == 0;
  cut_.clear();
  place_.assign(problem_.nets.size(), 0);
  for (size_t n = 0; n < problem_.nets.size(); ++n)
    if (span_[n] > 1) cut(static_cast<int>(n));
}

void LoadState::cut(int net) {
  place_[net] = static_cast<int>(cut_.size());
  cut_.push_back(net);
}

void LoadState::join(int net) {
  place_[cut_.back()] = place_[net];
  cut_[place_[net]] = cut_.back();
  cut_.pop_back();
}

double LoadState::excess(int part) const {
  const double most = problem_.memory_bytes;
  if (problem_.is_cpu(part) || bytes_[part] <= most) return 0;
  return bytes_[part] / std::max(most, 1.0) - (most > 0 ? 1 : 0);
}

void LoadState::leave(int net, int part) {
  if (--count_[net * num_parts_ + part] > 0) return;
  if (span_[net]-- > 1) pay(part, -problem_.nets[net].cost);
}

void LoadState::enter(int net, int part) {
  if (count_[net * num_parts_ + part]++ > 0) return;
  if (span_[net]++ > 0) pay(part, problem_.nets[net].cost);
}

void LoadState::move(int item, int to) {
  const int from = placement_[item];
  for (const int net : nets_of_[item]) {
    const int before = span_[net];
    leave(net, from);
    enter(net, to);
    if (before == 1 && span_[net] > 1) cut(net);
    if (before > 1 && span_[net] == 1) join(net);
    // A part that was alone has company now, or the other way round: what `leave` and `enter` cannot see.
    if (before == 1 && span_[net] == 2) pay(from, problem_.nets[net].cost);
    if (before == 2 && span_[net] == 1) pay(to, -problem_.nets[net].cost);
  }
  loads_[from] -= problem_.work_on(from, item);
  loads_[to] += problem_.work_on(to, item);
  bytes_[from] -= problem_.items[item].bytes;
  bytes_[to] += problem_.items[item].bytes;
  placement_[item] = to;
}

}  // namespace cohort
