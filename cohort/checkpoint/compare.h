#pragma once
// How far two checkpoints are apart, tensor by tensor: what `cohort verify` prints beside its bound.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/checkpoint/checkpoint.h"

namespace cohort {

struct TensorDifference {
  enum class Kind { kCompared, kMissingInReference, kMissingInOther, kOtherTypeOrShape };
  std::string name;
  Kind kind = Kind::kCompared;
  int64_t num_elements = 0;  ///< Of the reference, or of the one that has it.
  bool bitwise_equal = false;
  // For kCompared; infinite for the other kinds. A NaN on one side only counts as infinitely far, NaN on both sides as equal.
  double max_difference = 0;       ///< max |other - reference|
  double max_reference = 0;        ///< max |reference| over its finite elements
  double relative_difference = 0;  ///< max_difference / max_reference. Integer and bool tensors: 0 when equal, else infinite.
};

/// Two arrays of the same dtype and `num_elements`; they need not be aligned. The result has no name.
TensorDifference compare_values(DType dtype, const void* reference, const void* other, int64_t num_elements);

/// One entry for each tensor of either checkpoint whose name begins with `prefix`: first what is missing or of another shape, then by
/// falling relative difference, then by name.
std::vector<TensorDifference> compare_checkpoints(const Checkpoint& reference, const Checkpoint& other, const std::string& prefix = "");

}  // namespace cohort
