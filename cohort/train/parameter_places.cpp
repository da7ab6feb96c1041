#include "cohort/train/parameter_places.h"

#include <c10/core/ScalarType.h>

#include "cohort/base/error.h"
#include "cohort/checkpoint/flat_range.h"

namespace cohort {

DType dtype_of(const FlatPiece& piece) {
  switch (piece.values.scalar_type()) {
    case at::kDouble:
      return DType::kF64;
    case at::kFloat:
      return DType::kF32;
    case at::kHalf:
      return DType::kF16;
    case at::kBFloat16:
      return DType::kBF16;
    case at::kLong:
      return DType::kI64;
    case at::kInt:
      return DType::kI32;
    case at::kShort:
      return DType::kI16;
    case at::kChar:
      return DType::kI8;
    case at::kByte:
      return DType::kU8;
    case at::kBool:
      return DType::kBool;
    default:
      fail(ErrorCode::kBadInput, "tensor ", piece.name, " has a type that checkpoints cannot hold");
  }
}

const ParameterShard* ParameterPlaces::shard_of(const FlatPiece& piece) const {
  std::string name;
  if (piece.name.starts_with("model/")) name = piece.name.substr(6);
  else if (piece.name.starts_with("optimizer/")) name = piece.name.substr(10, piece.name.rfind('/') - 10);
  const auto found = shards.find(name);
  // A count of updates is one number, whatever the parameter's shape.
  return found == shards.end() || piece.shape != found->second.local_shape() ? nullptr : &found->second;
}

std::vector<TensorPiece> ParameterPlaces::to_save(const std::vector<FlatPiece>& pieces, std::vector<std::vector<char>>& scratch) const {
  std::vector<TensorPiece> parts;
  for (const FlatPiece& piece : pieces) {
    const DType dtype = dtype_of(piece);
    const int64_t count = piece.values.numel();
    std::vector<TensorPiece> boxes;
    if (const ParameterShard* shard = shard_of(piece)) {
      boxes = pieces_of_shard(piece.name, dtype, *shard, piece.begin, count, piece.values.data_ptr(), scratch);
    } else if (saves_whole) {
      boxes = pieces_of_range({piece.name, dtype, piece.shape, piece.values.data_ptr()}, piece.begin, piece.begin + count);
    }
    for (TensorPiece& box : boxes) parts.push_back(std::move(box));
  }
  return parts;
}

}  // namespace cohort
