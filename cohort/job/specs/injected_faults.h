#pragma once
// `--inject`: faults of the machine that a user asks for, to see what becomes of a run. Torch-free.

#include <cstdint>
#include <string>
#include <vector>

namespace cohort {

/// One of `--inject`.
struct InjectedFault {
  std::string kind;  ///< slow, pause, kill.
  int64_t rank = 0;
  double value = 0;  ///< Factor, seconds, step.
};
/// Error(kBadInput) for what is no fault, or one that is given twice to a rank.
std::vector<InjectedFault> parse_faults(const std::string& text);

/// What they are for one rank.
struct Injection {
  double slow_factor = 1.0;
  double pause_seconds = 0.0;
  int64_t kill_step = -1;
};
Injection injection_for_rank(const std::vector<InjectedFault>& faults, int rank);
/// Those of ranks below `num_ranks`, of slow workers alone where `slow_only`, as text again; "" for none.
std::string selected_faults(const std::string& text, int num_ranks, bool slow_only);
/// The highest rank that has one, -1 for none.
int64_t last_injected_rank(const std::vector<InjectedFault>& faults);

}  // namespace cohort
