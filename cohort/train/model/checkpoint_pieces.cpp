#include "cohort/train/model/checkpoint_pieces.h"

#include <torch/csrc/autograd/grad_mode.h>

#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/files/process_identity.h"
#include "cohort/base/text/json.h"
#include "cohort/checkpoint/box.h"
#include "cohort/checkpoint/io.h"
#include "cohort/comm/together.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/parallel/local/fragments.h"
#include "cohort/world/status.h"

namespace cohort {
namespace {

const std::vector<std::pair<at::ScalarType, DType>> kTypes = {
    {at::kDouble, DType::kF64}, {at::kFloat, DType::kF32}, {at::kHalf, DType::kF16},  {at::kBFloat16, DType::kBF16},
    {at::kLong, DType::kI64},   {at::kInt, DType::kI32},   {at::kShort, DType::kI16}, {at::kChar, DType::kI8},
    {at::kByte, DType::kU8},    {at::kBool, DType::kBool}};

/// For work of the disk: other ranks wait longer than their timeout as long as it makes progress.
void write_together(Group& group, const std::string& what, const std::function<void()>& part) {
  struct Saving {
    Saving() { report_saving(1); }
    ~Saving() { report_saving(0); }
  };
  const Saving saving;
  together_patiently(group, what, part, [] {
    const int64_t calls = num_file_calls();
    report_saving(1 + calls);
    return calls;
  });
}

}  // namespace

std::optional<DType> stored_type(at::ScalarType type) {
  for (const auto& [torch_type, stored] : kTypes)
    if (torch_type == type) return stored;
  return std::nullopt;
}

DType dtype_of_tensor(const std::string& name, const at::Tensor& tensor) {
  if (const std::optional<DType> type = stored_type(tensor.scalar_type())) return *type;
  fail(ErrorCode::kBadInput, "tensor ", name, " has the type ", at::toString(tensor.scalar_type()), ", which no checkpoint holds");
}

DType dtype_of(const FlatPiece& piece) { return dtype_of_tensor(piece.name, piece.values); }

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
  // The step count of an optimizer is one number, whatever the parameter's shape.
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

std::vector<FlatPiece> buffer_pieces(const torch::nn::Module& module) {
  std::vector<FlatPiece> pieces;
  for (const auto& [name, tensor] : distinct_buffers(module)) {
    if (!tensor.is_contiguous()) fail(ErrorCode::kBadInput, "buffer ", name, " is not contiguous; checkpoints need it to be");
    pieces.push_back({"model/" + name, alias_of(tensor.detach(), 0, {tensor.numel()}), tensor.sizes().vec(), 0});
  }
  return pieces;
}

std::string write_checkpoint(Group& group, const ParameterPlaces& places, const CheckpointContent& content, const std::string& what) {
  at::NoGradGuard no_grad;
  const std::string nonce = group.all_gather_text(process_nonce(), "the name of the checkpoint").front();
  CheckpointWriter writer(content.folder, content.step, nonce);
  const bool first = group.rank() == 0;
  std::string path, shard;
  std::vector<FlatPiece> mine;
  Json state;
  together(group, what, [&] {  // An error here leaves no folder.
    mine = content.mine();
    if (first) state = content.state();
  });
  try {
    write_together(group, what, [&] {
      if (first) writer.begin(content.makes_above);
    });
    std::vector<std::vector<char>> scratch;
    std::vector<TensorPiece> pieces;
    together(group, what, [&] {
      for (FlatPiece& piece : mine) piece.values = piece.values.cpu();
      pieces = places.to_save(mine, scratch);
    });
    write_together(group, what, [&] {
      if (!pieces.empty()) shard = to_json(writer.write_shard(group.rank(), pieces)).dump();
    });
    const std::vector<std::string> shards = group.all_gather_text(shard, "the parts of the checkpoint");
    write_together(group, what, [&] {
      if (!first) return;
      std::vector<ShardInfo> parts;
      for (const std::string& text : shards)
        if (!text.empty()) parts.push_back(shard_from_json(Json::parse(text)));
      path = writer.commit(parts, state, content.num_kept, content.best_step);
    });
  } catch (...) {
    if (first) writer.abandon();
    throw;
  }
  return group.all_gather_text(path, "the path of the checkpoint").front();
}

void check_piece(const Checkpoint& checkpoint, const ParameterPlaces& places, const FlatPiece& piece, const std::string& option) {
  if (!checkpoint.has(piece.name)) fail(ErrorCode::kBadInput, option, checkpoint.path(), " has no tensor ", piece.name);
  const ParameterShard* const shard = places.shard_of(piece);
  if (checkpoint.shape(piece.name) != (shard ? shard->whole_shape : piece.shape) || checkpoint.dtype(piece.name) != dtype_of(piece))
    fail(ErrorCode::kBadInput, option, "tensor ", piece.name, " of ", checkpoint.path(), " has another shape or type than the model's");
}

void read_piece(const Checkpoint& checkpoint, const ParameterPlaces& places, FlatPiece& piece) {
  at::Tensor here = piece.values.cpu();  // No copy if it is in host memory.
  const int64_t count = here.numel();
  if (const ParameterShard* shard = places.shard_of(piece)) read_shard(checkpoint, piece.name, *shard, piece.begin, count, here.data_ptr());
  else checkpoint.read_range(piece.name, piece.begin, piece.begin + count, here.data_ptr());
  if (!piece.values.is_cpu()) piece.values.copy_(here);
}

}  // namespace cohort
