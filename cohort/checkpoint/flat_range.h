#pragma once
// Flat ranges of tensors as boxes: a rank that owns elements [begin, end) of a tensor, counted row by row, can write and read just those.
// Torch-free.

#include <cstdint>
#include <vector>

#include "cohort/checkpoint/box.h"
#include "cohort/checkpoint/checkpoint.h"

namespace cohort {

/// The elements [begin, end) of a tensor of `shape`, in row-major order, as boxes that follow each other in that order; none is empty. At
/// most 2N - 1 for N dimensions. Error(kBadInput) when the range leaves the tensor.
std::vector<Box> boxes_of_range(const std::vector<int64_t>& shape, int64_t begin, int64_t end);

/// What a rank gives to CheckpointWriter::write_shard for elements [begin, end) of the tensor `whole`, whose `data` is that of the first of
/// these elements. A tensor without elements becomes one empty piece, so that the checkpoint knows it; any number of ranks may write it.
std::vector<TensorPiece> pieces_of_range(const TensorView& whole, int64_t begin, int64_t end);

}  // namespace cohort
