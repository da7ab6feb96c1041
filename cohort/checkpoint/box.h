#pragma once
// Axis-parallel boxes of tensor elements: a box is [begin[d], begin[d] + shape[d]) in each dimension d; a scalar's box has no dimension.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cohort {

struct Box {
  std::vector<int64_t> begin, shape;

  int64_t num_elements() const;  ///< The box must lie in a tensor whose size fits int64.
};

/// Empty when the box lies in a tensor of `whole_shape`, else what is wrong. Any values are safe.
std::string box_error(const Box& box, const std::vector<int64_t>& whole_shape);
/// The common part, absent when it has no element. Both boxes must be valid for one tensor.
std::optional<Box> intersection(const Box& a, const Box& b);
/// Empty when the boxes (each valid) cover the tensor exactly once, else what is wrong.
/// Cost: pairs of boxes that share rows of the first dimension; n log n for row shards.
std::string cover_error(const std::vector<Box>& boxes, const std::vector<int64_t>& whole_shape);

/// A row-major array that holds `box` of a tensor.
struct BoxSource {
  const void* data;
  const Box& box;
};
struct BoxTarget {
  void* data;
  const Box& box;
};
/// Copies `part`, which must lie in both boxes; the longest contiguous runs go by one memcpy each.
void copy_box(const Box& part, const BoxSource& source, const BoxTarget& target, int64_t element_bytes);

}  // namespace cohort
