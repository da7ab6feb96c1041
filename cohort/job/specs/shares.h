#pragma once
// `--shares`: how much of the global batch each rank takes. Torch-free.

#include <string>
#include <vector>

namespace cohort {

struct Shares {
  bool automatic = false;       ///< By measured speed, from equal ones on.
  std::vector<double> weights;  ///< One a rank; empty: all alike.

  bool are_equal() const;  ///< At the start.
  /// One for each of `num_ranks`. Error(kBadInput) where others are named.
  std::vector<double> of(int num_ranks) const;
};
/// "equal", "auto", or one positive number a rank: "3:1:1". Error(kBadInput) saying what is wrong with anything else.
Shares parse_shares(const std::string& text);

}  // namespace cohort
