#pragma once
// Boxes of tensor elements, and what a rank that owns the elements [begin, end) of a tensor, counted row by row, reads and writes of them.
// Torch-free.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/checkpoint/checkpoint.h"

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

// Flat ranges of tensors as boxes: a rank that owns elements [begin, end) of a tensor, counted row by row, can write and read just those.
// Torch-free.

/// The elements [begin, end) of a tensor of `shape`, in row-major order, as boxes that follow each other in that order; none is empty. At
/// most 2N - 1 for N dimensions. Error(kBadInput) when the range leaves the tensor.
std::vector<Box> boxes_of_range(const std::vector<int64_t>& shape, int64_t begin, int64_t end);

/// What a rank gives to CheckpointWriter::write_shard for elements [begin, end) of the tensor `whole`, whose `data` is that of the first of
/// these elements. A tensor without elements becomes one empty piece, so that the checkpoint knows it; any number of ranks may write it.
std::vector<TensorPiece> pieces_of_range(const TensorView& whole, int64_t begin, int64_t end);

}  // namespace cohort
