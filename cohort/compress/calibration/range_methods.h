#pragma once
// Which range of values the codes of an activation are to span: the table of methods. A small range has fine steps and cuts
// values off, a large one the other way round. Torch-free.

#include <functional>
#include <string>
#include <vector>

#include "cohort/compress/calibration/histogram.h"

namespace cohort {

/// Steps between the codes 0 and 127 of an activation.
inline constexpr int kActivationSteps = 127;

struct RangeMethod {
  std::string name, help;
  std::function<ValueRange(const Histogram&)> choose;  ///< A range that holds zero, within the histogram's; of one that is not empty.
};

/// In the order of their help.
const std::vector<RangeMethod>& range_methods();
/// Error(kBadInput) that suggests the nearest.
const RangeMethod& find_range_method(const std::string& name);

}  // namespace cohort
