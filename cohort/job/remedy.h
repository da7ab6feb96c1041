#pragma once
// What --remedy says: what is done against stale gradients. Torch-free; train/async/remedies/ does it.

#include <string>
#include <vector>

namespace cohort {

struct Remedy {
  std::string name;  ///< "": none.
  double value = 0;  ///< Its number, or the default of one.
  bool operator==(const Remedy&) const = default;
};

struct RemedyRow {
  const char* name;
  const char* value_name;  ///< "" where it takes no number.
  const char* what;        ///< For people.
  double standard;         ///< Where the number is left out; kNeedsNumber: it cannot be.
  double least, most;
  bool needs_momentum;  ///< Acts with --optimizer momentum and nesterov alone.
};
inline constexpr double kNeedsNumber = -1;
const std::vector<RemedyRow>& remedy_rows();

/// NAME[:VALUE], "" for none. Error(kBadInput) otherwise.
Remedy parse_remedy(const std::string& text);

}  // namespace cohort
