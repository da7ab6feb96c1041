#include "cohort/job/specs/injected_faults.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

constexpr double kMostFaultValue = 1e15;

struct FaultKind {
  const char *name, *form, *example, *value;
  bool (*allows)(double);
};
constexpr FaultKind kFaultKinds[] = {
    {"slow", "slow:RANK:FACTOR", "slow:1:2.5", "a factor above 1", [](double value) { return value > 1; }},
    {"pause", "pause:RANK:SECONDS", "pause:1:30", "a number of seconds, 0 or more", [](double value) { return value >= 0; }},
    {"kill", "kill:RANK:STEP", "kill:1:7", "a step, counted from 0",
     [](double value) { return value >= 0 && value == std::floor(value); }}};

}  // namespace

std::vector<InjectedFault> parse_faults(const std::string& text) {
  std::vector<InjectedFault> faults;
  for (const std::string& part : split(text, ',')) {
    const std::vector<std::string> fields = split(part, ':');
    const std::string name = fields.empty() ? "" : fields[0];
    const auto* const kind =
        std::find_if(std::begin(kFaultKinds), std::end(kFaultKinds), [&](const FaultKind& each) { return name == each.name; });
    if (kind == std::end(kFaultKinds))
      fail(ErrorCode::kBadInput, name_settings("--inject "), text, ": unknown fault '", name, "'",
           did_you_mean(name, {"slow", "pause", "kill"}),
           "; expected slow:RANK:FACTOR, pause:RANK:SECONDS or kill:RANK:STEP, several with commas");
    const auto refuse = [&](const std::string& why) {
      fail(ErrorCode::kBadInput, name_settings("--inject "), part, ": ", why, "; expected ", kind->form, ", for example ", kind->example);
    };
    if (fields.size() != 3) refuse(concat(kind->name, " takes a rank and ", kind->value, ", with colons"));
    const auto rank = parse_integer(fields[1]);
    const auto value = parse_number(fields[2], 0, kMostFaultValue);
    if (!rank || *rank < 0) refuse(concat("'", fields[1], "' is not a rank, which stands first and is a whole number from 0 on"));
    if (!value || !kind->allows(*value)) refuse(concat("'", fields[2], "' is not ", kind->value));
    for (const InjectedFault& other : faults)
      if (other.kind == fields[0] && other.rank == *rank)
        fail(ErrorCode::kBadInput, name_settings("--inject "), text, ": two faults '", fields[0], "' of rank ", *rank,
             ", and a rank takes one of a kind; ", "leave one of them out");
    faults.push_back({fields[0], *rank, *value});
  }
  return faults;
}

Injection injection_for_rank(const std::vector<InjectedFault>& faults, int rank) {
  Injection injection;
  for (const InjectedFault& fault : faults) {
    if (fault.rank != rank) continue;
    if (fault.kind == "slow") injection.slow_factor = fault.value;
    else if (fault.kind == "pause") injection.pause_seconds = fault.value;
    else injection.kill_step = static_cast<int64_t>(fault.value);
  }
  return injection;
}

std::string selected_faults(const std::string& text, int num_ranks, bool slow_only) {
  const std::vector<std::string> parts = split(text, ',');
  const std::vector<InjectedFault> faults = parse_faults(text);
  std::vector<std::string> kept;
  for (size_t i = 0; i < faults.size(); ++i)
    if (faults[i].rank < num_ranks && (!slow_only || faults[i].kind == "slow")) kept.push_back(parts[i]);
  return join(kept, ",");
}

int64_t last_injected_rank(const std::vector<InjectedFault>& faults) {
  int64_t last = -1;
  for (const InjectedFault& fault : faults) last = std::max(last, fault.rank);
  return last;
}

}  // namespace cohort
