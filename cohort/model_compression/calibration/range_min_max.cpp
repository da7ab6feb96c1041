// All values that were seen. Nothing is cut off; one outlier makes all steps coarse.
// Cost: none beyond the histogram.

#include "cohort/model_compression/calibration/range_methods.h"

namespace cohort {

RangeMethod min_max_range() {
  return {"min-max", "all values that were seen", [](const Histogram& values) { return values.range(); }};
}

}  // namespace cohort
