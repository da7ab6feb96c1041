#pragma once
// Boxes of tensor elements, and flat (row-major) ranges of elements as boxes, for ranks that own such ranges. Torch-free.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/checkpoint/checkpoint.h"

namespace cohort {

struct Box {
  std::vector<int64_t> begin, shape;

  int64_t num_elements() const;  ///< Must fit int64.
};

/// "" if the box lies in a tensor of `whole_shape`, else an error text. Accepts any values.
std::string box_error(const Box& box, const std::vector<int64_t>& whole_shape);
/// The intersection; nullopt if empty. Both boxes must be valid for one tensor.
std::optional<Box> intersection(const Box& a, const Box& b);
/// "" if the (valid) boxes cover the tensor exactly once, else an error text.
/// Cost: pairs of boxes that share rows of the first dimension; n log n for row shards.
std::string cover_error(const std::vector<Box>& boxes, const std::vector<int64_t>& whole_shape);

/// A row-major array with the elements `box` of a tensor.
struct BoxSource {
  const void* data;
  const Box& box;
};
struct BoxTarget {
  void* data;
  const Box& box;
};
/// Copies `part`, which must lie in both boxes, with one memcpy per contiguous run.
void copy_box(const Box& part, const BoxSource& source, const BoxTarget& target, int64_t element_bytes);

/// The elements [begin, end) of a tensor of `shape` in row-major order as at most 2N - 1 non-empty boxes in that order, for N dimensions.
/// Error(kBadInput) when the range leaves the tensor.
std::vector<Box> boxes_of_range(const std::vector<int64_t>& shape, int64_t begin, int64_t end);

/// Pieces for CheckpointWriter::write_shard of the elements [begin, end) of `whole`, whose `data` points to the first of them. An empty
/// tensor becomes one empty piece, so that the checkpoint contains it; several ranks may write it.
std::vector<TensorPiece> pieces_of_range(const TensorView& whole, int64_t begin, int64_t end);

}  // namespace cohort
