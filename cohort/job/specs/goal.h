#pragma once
// `--goal`: what a run trains until it has reached it. Torch-free.

#include <map>
#include <string>

namespace cohort {

/// `val_error<0.12`, `val_precision>0.31`: metric is val_error, val_loss, val_precision (of labels) or loss, or one that --metrics names.
struct Goal {
  std::string metric;
  bool below = true;
  double value = 0;
  bool reached(const std::map<std::string, double>& metrics) const;
};
/// `more`: the names of --metrics, joined by ','. Error(kBadInput).
Goal parse_goal(const std::string& text, const std::string& more = "");

}  // namespace cohort
