#include "cohort/train/async/remedies/remedies.h"

#include "cohort/base/fail.h"

namespace cohort {
namespace {

struct Row {
  const char* name;  // As job/remedy.cpp has it.
  std::unique_ptr<RemedyRule> (*make)(double value);
};
constexpr Row kRows[] = {
    {"rate", remedies::constant_rate},           {"staleness", remedies::staleness_rate}, {"compensate", remedies::delay_compensation},
    {"lookahead", remedies::momentum_lookahead}, {"drop", remedies::drop_late},           {"heloco", remedies::heloco}};

}  // namespace

std::unique_ptr<RemedyRule> make_remedy(const Remedy& remedy) {
  if (remedy.name.empty()) return nullptr;
  for (const Row& row : kRows)
    if (remedy.name == row.name) return row.make(remedy.value);
  fail(ErrorCode::kFailed, "the remedy ", remedy.name, " has no rule");
}

}  // namespace cohort
