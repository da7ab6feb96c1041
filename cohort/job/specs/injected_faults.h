#pragma once
// `--inject`: faults injected into a run. Torch-free.

#include <cstdint>
#include <string>
#include <vector>

namespace cohort {

struct InjectedFault {
  std::string kind;  ///< slow, pause, kill.
  int64_t rank = 0;
  double value = 0;  ///< Factor, seconds, step.
};
/// Error(kBadInput) for an unknown fault, or two of a kind on one rank.
std::vector<InjectedFault> parse_faults(const std::string& text);

/// The faults of one rank.
struct Injection {
  double slow_factor = 1.0;
  double pause_seconds = 0.0;
  int64_t kill_step = -1;
};
Injection injection_for_rank(const std::vector<InjectedFault>& faults, int rank);
/// The faults of ranks below `num_ranks` (only `slow` ones with `slow_only`) as text.
std::string selected_faults(const std::string& text, int num_ranks, bool slow_only);
/// The highest rank with a fault; -1: none.
int64_t last_injected_rank(const std::vector<InjectedFault>& faults);

}  // namespace cohort
