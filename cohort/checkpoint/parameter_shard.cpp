// Divided parameters in checkpoints.
//
// A checkpoint stores whole tensors, so a rank's part of a divided parameter is written as boxes of the whole one: (1) elements [begin,
// begin
// + count) of the part are boxes of the part (box.h), each contiguous in memory; (2) each is split at the bounds of the ranges into boxes
// of the whole tensor. A split box is still contiguous if it has one row of every dimension before the divided one (always for dimension 0
// or a single range); otherwise its rows are gathered. Reading is the reverse. Cost: a copy of non-contiguous elements; at most (2N - 1)
// boxes per range for N dimensions.
#include "cohort/checkpoint/parameter_shard.h"

#include <algorithm>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/checkpoint/box.h"

namespace cohort {
namespace {

/// A box of the whole tensor, and its position in the part.
struct DividedBox {
  Box whole;
  Box local;             ///< The same elements, in the part's indices.
  Box around;            ///< The contiguous box of the part that contains `local`.
  int64_t around_begin;  ///< Offset of `around` in the flat range, in elements.

  /// Whether the elements follow each other in memory.
  bool is_contiguous(int dim) const {
    const auto before = around.shape.begin() + dim;
    return local.shape == around.shape || std::all_of(around.shape.begin(), before, [](int64_t size) { return size == 1; });
  }
  /// Offset of a contiguous `local` in the flat range, in elements.
  int64_t begin(int dim) const {
    int64_t row_elements = 1;
    for (size_t d = static_cast<size_t>(dim) + 1; d < local.shape.size(); ++d) row_elements *= local.shape[d];
    return around_begin + (local.begin[static_cast<size_t>(dim)] - around.begin[static_cast<size_t>(dim)]) * row_elements;
  }
};

void check_shard(const ParameterShard& shard, const std::string& name) {
  if (shard.dim < 0 || static_cast<size_t>(shard.dim) >= shard.whole_shape.size() || checked_num_elements(shard.whole_shape) < 0) {
    fail(ErrorCode::kBadInput, "tensor ", name, " of shape ", shape_text(shard.whole_shape), " has no dimension ", shard.dim,
         " that could be divided");
  }
  const int64_t size = shard.whole_shape[static_cast<size_t>(shard.dim)];
  int64_t local = 0;
  for (const SliceRange& range : shard.ranges) {
    if (range.local != local || range.count < 0 || range.whole < 0 || range.whole > size || range.count > size - range.whole ||
        range.count > size - local) {
      fail(ErrorCode::kBadInput, "tensor ", name, " of shape ", shape_text(shard.whole_shape), ": a part whose indices from ", range.local,
           " on are [", range.whole, ", ", range.whole, " + ", range.count, ") of dimension ", shard.dim, " does not lie in it");
    }
    local += range.count;
  }
}

/// The boxes of elements [begin, begin + count) of the part.
std::vector<DividedBox> divided_boxes(const ParameterShard& shard, int64_t begin, int64_t count, const std::string& name) {
  check_shard(shard, name);
  const std::vector<int64_t> local_shape = shard.local_shape();
  const int64_t num_elements = checked_num_elements(local_shape);
  if (begin < 0 || count < 0 || begin > num_elements || count > num_elements - begin) {
    fail(ErrorCode::kBadInput, "tensor ", name, ": elements ", begin, " + ", count, " leave the part of shape ", shape_text(local_shape));
  }
  const auto dim = static_cast<size_t>(shard.dim);
  std::vector<DividedBox> result;
  int64_t around_begin = 0;
  for (const Box& around : boxes_of_range(local_shape, begin, begin + count)) {
    for (const SliceRange& range : shard.ranges) {
      const int64_t first = std::max(around.begin[dim], range.local);
      const int64_t last = std::min(around.begin[dim] + around.shape[dim], range.local + range.count);
      if (first >= last) continue;
      DividedBox box{around, around, around, around_begin};
      box.local.begin[dim] = first;
      box.whole.begin[dim] = range.whole + (first - range.local);
      box.local.shape[dim] = box.whole.shape[dim] = last - first;
      result.push_back(std::move(box));
    }
    around_begin += around.num_elements();
  }
  return result;
}

}  // namespace

std::vector<int64_t> ParameterShard::local_shape() const {
  std::vector<int64_t> shape = whole_shape;
  int64_t size = 0;
  for (const SliceRange& range : ranges) size += range.count;
  shape.at(static_cast<size_t>(dim)) = size;
  return shape;
}

ParameterShard even_shard(std::vector<int64_t> whole_shape, int dim, int num_parts, int index, const std::string& what, int num_blocks,
                          int64_t unit) {
  if (num_parts < 1 || index < 0 || index >= num_parts || num_blocks < 1 || unit < 1) {
    fail(ErrorCode::kBadInput, what, ": there is no part ", index, " of ", num_parts, " with ", num_blocks, " blocks and units of ", unit);
  }
  ParameterShard shard{std::move(whole_shape), dim, {}};
  check_shard(shard, what);
  const int64_t size = shard.whole_shape[static_cast<size_t>(dim)];
  const int64_t block = size / num_blocks;
  if (size % num_blocks != 0 || block % unit != 0 || block / unit % num_parts != 0) {
    fail(ErrorCode::kBadInput, what, " of shape ", shape_text(shard.whole_shape), " cannot be divided in ", num_parts,
         " equal parts: dimension ", dim, " has ", size, " indices", num_blocks > 1 ? concat(" in ", num_blocks, " blocks") : "",
         unit > 1 ? concat(", of which ", unit, " stay together") : "");
  }
  const int64_t count = block / num_parts;
  for (int64_t b = 0; b < num_blocks && count > 0; ++b) {
    const SliceRange range{b * count, b * block + index * count, count};
    const bool continues = !shard.ranges.empty() && shard.ranges.back().whole + shard.ranges.back().count == range.whole;
    if (continues) {
      shard.ranges.back().count += count;
    } else {
      shard.ranges.push_back(range);
    }
  }
  return shard;
}

std::vector<TensorPiece> pieces_of_shard(const std::string& name, DType dtype, const ParameterShard& shard, int64_t begin, int64_t count,
                                         const void* data, std::vector<std::vector<char>>& scratch) {
  const int64_t element_bytes = dtype_bytes(dtype);
  const auto* bytes = static_cast<const std::byte*>(data);
  std::vector<TensorPiece> pieces;
  for (DividedBox& box : divided_boxes(shard, begin, count, name)) {
    const void* source = nullptr;
    if (box.is_contiguous(shard.dim)) {
      source = bytes + box.begin(shard.dim) * element_bytes;
    } else {
      std::vector<char>& rows = scratch.emplace_back(static_cast<size_t>(box.local.num_elements() * element_bytes));
      copy_box(box.local, {bytes + box.around_begin * element_bytes, box.around}, {rows.data(), box.local}, element_bytes);
      source = rows.data();
    }
    pieces.push_back({{name, dtype, std::move(box.whole.shape), source}, shard.whole_shape, std::move(box.whole.begin)});
  }
  if (checked_num_elements(shard.whole_shape) == 0) {  // one empty piece, so that the checkpoint knows the tensor
    pieces.push_back({{name, dtype, shard.whole_shape, nullptr}, shard.whole_shape, std::vector<int64_t>(shard.whole_shape.size(), 0)});
  }
  return pieces;
}

void read_shard(const Checkpoint& checkpoint, const std::string& name, const ParameterShard& shard, int64_t begin, int64_t count,
                void* data) {
  if (checkpoint.shape(name) != shard.whole_shape) {
    fail(ErrorCode::kBadInput, checkpoint.path(), ": tensor ", name, " has shape ", shape_text(checkpoint.shape(name)), ", but a part of ",
         shape_text(shard.whole_shape), " is wanted; the checkpoint is of another model");
  }
  const int64_t element_bytes = dtype_bytes(checkpoint.dtype(name));
  auto* bytes = static_cast<std::byte*>(data);
  std::vector<char> rows;
  for (const DividedBox& box : divided_boxes(shard, begin, count, name)) {
    if (box.is_contiguous(shard.dim)) {
      checkpoint.read(name, box.whole.begin, box.whole.shape, bytes + box.begin(shard.dim) * element_bytes);
    } else {
      rows.resize(static_cast<size_t>(box.local.num_elements() * element_bytes));
      checkpoint.read(name, box.whole.begin, box.whole.shape, rows.data());
      copy_box(box.local, {rows.data(), box.local}, {bytes + box.around_begin * element_bytes, box.around}, element_bytes);
    }
  }
}

}  // namespace cohort
