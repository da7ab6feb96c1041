#pragma once
// How far two checkpoints are apart, tensor by tensor: what `cohort verify` judges by.

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
  // How far training has moved the reference from where it began, where that is known (else 0).
  double max_update = 0;                              ///< max |reference - initial|
  double squared_difference = 0, squared_update = 0;  ///< Sums over the elements.

  bool is_equal() const { return kind == Kind::kCompared && relative_difference == 0; }
  /// max_difference / max_update. Of a tensor that did not move: 0 when equal, else infinite.
  double difference_of_update() const;
};

/// Arrays of the same dtype and `num_elements`; they need not be aligned. `initial` may be null. The result has no name.
TensorDifference compare_values(DType dtype, const void* reference, const void* other, int64_t num_elements, const void* initial = nullptr);
/// max |(other - other_initial) - (reference - initial)| of a tensor of floats: how far its two updates are apart.
double compare_updates(const Checkpoint& reference, const Checkpoint& initial, const Checkpoint& other, const Checkpoint& other_initial,
                       const std::string& name);

/// One entry for each tensor of either checkpoint: first what is missing or of another shape, then by falling difference (relative to the
/// update, or with a null `initial` to the values), then by name. A tensor that `initial` does not have began as zeros.
std::vector<TensorDifference> compare_checkpoints(const Checkpoint& reference, const Checkpoint& other,
                                                  const Checkpoint* initial = nullptr);

}  // namespace cohort
