#pragma once
// Differences of two checkpoints, tensor by tensor, for `cohort verify`.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/checkpoint/checkpoint.h"

namespace cohort {

struct TensorDifference {
  enum class Kind { kCompared, kMissingInReference, kMissingInOther, kOtherTypeOrShape };
  std::string name;
  Kind kind = Kind::kCompared;
  int64_t num_elements = 0;  ///< Of the reference, else of the other.
  bool bitwise_equal = false;
  // For kCompared; infinite for other kinds. NaN on one side counts as infinite, on both sides as equal.
  double max_difference = 0;       ///< max |other - reference|
  double max_reference = 0;        ///< max |reference| over its finite elements
  double relative_difference = 0;  ///< max_difference / max_reference. Integer and bool tensors: 0 when equal, else infinite.
  // How far training has moved the reference; 0 without initial values.
  double max_update = 0;                              ///< max |reference - initial|
  double squared_difference = 0, squared_update = 0;  ///< Sums over the elements.

  bool is_equal() const { return kind == Kind::kCompared && relative_difference == 0; }
  /// max_difference / max_update; without an update 0 when equal, else infinite.
  double difference_of_update() const;
};

/// Compares arrays of `num_elements`, which may be unaligned. `initial` may be null. The result has no name.
TensorDifference compare_values(DType dtype, const void* reference, const void* other, int64_t num_elements, const void* initial = nullptr);
/// max |(other - other_initial) - (reference - initial)| of a floating-point tensor.
double compare_updates(const Checkpoint& reference, const Checkpoint& initial, const Checkpoint& other, const Checkpoint& other_initial,
                       const std::string& name);

/// One entry per tensor of either checkpoint: missing or of another shape first, then by falling difference (relative to the update, or to
/// the values without `initial`), then by name. A tensor missing in `initial` began as zeros.
std::vector<TensorDifference> compare_checkpoints(const Checkpoint& reference, const Checkpoint& other,
                                                  const Checkpoint* initial = nullptr);

}  // namespace cohort
