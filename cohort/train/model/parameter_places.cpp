#include "cohort/train/model/parameter_places.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/checkpoint/flat_range.h"
#include "cohort/parallel/local/state_names.h"

namespace cohort {
namespace {

const std::vector<std::pair<at::ScalarType, DType>> kTypes = {
    {at::kDouble, DType::kF64}, {at::kFloat, DType::kF32}, {at::kHalf, DType::kF16},  {at::kBFloat16, DType::kBF16},
    {at::kLong, DType::kI64},   {at::kInt, DType::kI32},   {at::kShort, DType::kI16}, {at::kChar, DType::kI8},
    {at::kByte, DType::kU8},    {at::kBool, DType::kBool}};

}  // namespace

std::optional<DType> stored_type(at::ScalarType type) {
  for (const auto& [torch_type, stored] : kTypes)
    if (torch_type == type) return stored;
  return std::nullopt;
}

bool can_be_saved(at::ScalarType type) { return stored_type(type).has_value(); }

DType dtype_of(const FlatPiece& piece) {
  if (const std::optional<DType> type = stored_type(piece.values.scalar_type())) return *type;
  fail(ErrorCode::kBadInput, "tensor ", piece.name, " has a type that checkpoints cannot hold");
}

std::optional<at::ScalarType> torch_type_of(int dtype) {
  for (const auto& [torch_type, type] : kTypes)
    if (static_cast<int>(type) == dtype) return torch_type;
  return std::nullopt;
}

const ParameterShard* ParameterPlaces::shard_of(const FlatPiece& piece) const {
  const std::string whole = split_state_name(piece.name).name;
  std::string name;
  if (whole.starts_with("model/")) name = whole.substr(6);
  else if (whole.starts_with("optimizer/")) name = whole.substr(10, whole.rfind('/') - 10);
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

DType dtype_of_tensor(const std::string& name, const at::Tensor& tensor) {
  if (const std::optional<DType> type = stored_type(tensor.scalar_type())) return *type;
  fail(ErrorCode::kBadInput, "tensor ", name, " has the type ", at::toString(tensor.scalar_type()), ", which no checkpoint holds");
}

}  // namespace cohort
