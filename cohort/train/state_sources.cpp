#include "cohort/train/state_sources.h"

#include <algorithm>

#include "cohort/parallel/local/fragments.h"

namespace cohort {

namespace {

/// The same of another worker.
std::string another_workers(const std::string& name, int64_t worker) { return name_of_worker(worker, name.substr(name.find('/') + 1)); }

}  // namespace

std::vector<std::string> StateSources::of_workers(const std::string& name) const {
  std::vector<std::string> found;
  while (tensors_.contains(name_of_worker(static_cast<int64_t>(found.size()), name)))
    found.push_back(name_of_worker(static_cast<int64_t>(found.size()), name));
  return found;
}

std::vector<std::string> StateSources::of(const std::string& name) const {
  const StateName split = split_state_name(name);
  if (split.of_outer) return tensors_.contains(name) ? std::vector<std::string>{name} : std::vector<std::string>{};
  if (split.of_fragments) {
    const bool is_there = tensors_.contains(name),
               fits = !tensors_.contains(another_workers(name, num_workers_)) && tensors_.contains(another_workers(name, num_workers_ - 1));
    return is_there && fits ? std::vector<std::string>{name} : std::vector<std::string>{};
  }
  if (tensors_.contains(split.name)) return {split.name};
  std::vector<std::string> states = of_workers(split.name);
  if (states.empty()) return {name};
  if (split.worker && static_cast<int>(states.size()) == num_workers_) return {name};
  return states;
}

int StateSources::num_states() const {
  int64_t most = -1;
  for (const std::string& tensor : tensors_)
    if (const StateName split = split_state_name(tensor); split.worker && !split.of_fragments) most = std::max(most, *split.worker);
  return static_cast<int>(most + 1);
}

}  // namespace cohort
