#include "cohort/train/checkpoint_pieces.h"

#include <torch/csrc/autograd/grad_mode.h>

#include "cohort/base/fail.h"
#include "cohort/base/files/process_identity.h"
#include "cohort/base/text/json.h"
#include "cohort/checkpoint/checkpoint.h"
#include "cohort/checkpoint/io.h"
#include "cohort/comm/together.h"
#include "cohort/parallel/common/flat_piece.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/world/status.h"

namespace cohort {

std::vector<FlatPiece> buffer_pieces(const torch::nn::Module& module) {
  std::vector<FlatPiece> pieces;
  for (const auto& [name, tensor] : distinct_buffers(module)) {
    if (!tensor.is_contiguous()) fail(ErrorCode::kBadInput, "buffer ", name, " is not contiguous; checkpoints need it to be");
    pieces.push_back({"model/" + name, alias_of(tensor.detach(), 0, {tensor.numel()}), tensor.sizes().vec(), 0});
  }
  return pieces;
}

namespace {

/// Of a part that is done by the disk: nobody's time is up while that gets on.
void write_together(Group& group, const std::string& what, const std::function<void()>& part) {
  struct Saving {
    Saving() { note_saving(1); }
    ~Saving() { note_saving(0); }
  };
  const Saving saving;
  together_patiently(group, what, part, [] {
    const int64_t calls = num_file_calls();
    note_saving(1 + calls);
    return calls;
  });
}

}  // namespace

std::string write_checkpoint(Group& group, const ParameterPlaces& places, const CheckpointContent& content, const std::string& what) {
  at::NoGradGuard no_grad;
  const std::string nonce = group.all_gather_text(process_nonce(), "the name of the checkpoint").front();
  CheckpointWriter writer(content.folder, content.step, nonce);
  const bool first = group.rank() == 0;
  std::string path, shard;
  std::vector<FlatPiece> mine;
  Json state;
  together(group, what, [&] {  // What cannot be saved leaves no folder.
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

void read_piece(const Checkpoint& checkpoint, const ParameterPlaces& places, FlatPiece& piece) {
  at::Tensor here = piece.values.cpu();  // The same memory, unless it is a device's.
  const int64_t count = here.numel();
  if (const ParameterShard* shard = places.shard_of(piece)) read_shard(checkpoint, piece.name, *shard, piece.begin, count, here.data_ptr());
  else checkpoint.read_range(piece.name, piece.begin, piece.begin + count, here.data_ptr());
  if (!piece.values.is_cpu()) piece.values.copy_(here);
}

}  // namespace cohort
