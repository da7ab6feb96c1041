#include "cohort/study/spec/archive_names.h"

#include <span>

namespace cohort::study {
namespace {

struct Pair {
  const char *theirs, *ours;
};
constexpr Pair kParameters[] = {{"learning_rate_decay_steps", "decay_steps"}, {"end_learning_rate_factor", "end_factor"}};
constexpr Pair kOptimizers[] = {{"nesterov_momentum", "nesterov"}};

std::string translated(const std::string& name, std::span<const Pair> pairs, const char* Pair::* from, const char* Pair::* to) {
  for (const Pair& pair : pairs)
    if (name == pair.*from) return pair.*to;
  return name;
}

}  // namespace

std::string archive_parameter(const std::string& ours) { return translated(ours, kParameters, &Pair::ours, &Pair::theirs); }
std::string our_parameter(const std::string& theirs) { return translated(theirs, kParameters, &Pair::theirs, &Pair::ours); }
std::string archive_optimizer(const std::string& ours) { return translated(ours, kOptimizers, &Pair::ours, &Pair::theirs); }
std::string our_optimizer(const std::string& theirs) { return translated(theirs, kOptimizers, &Pair::theirs, &Pair::ours); }

}  // namespace cohort::study
