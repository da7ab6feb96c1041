#pragma once
// Where this rank's parameters lie in the whole model, which makes a checkpoint the same under every layout, and a checkpoint that all
// ranks write together.

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cohort/base/files/safetensors.h"
#include "cohort/base/text/json_fwd.h"
#include "cohort/checkpoint/checkpoint.h"
#include "cohort/checkpoint/parameter_shard.h"
#include "cohort/comm/group.h"
#include "cohort/parallel/common/flat_piece.h"

namespace cohort {

/// A value. By default every parameter is whole on this rank.
struct ParameterPlaces {
  std::map<std::string, ParameterShard> shards;  ///< By name; other parameters are whole on each rank of the tensor axis.
  bool saves_whole = true;                       ///< This rank saves parameters that are whole on several ranks,
  bool saves_buffers = true;                     ///< and its buffers.
  std::map<std::string, std::string> aliases;    ///< Tied weights of the whole model: other name -> name in the checkpoint.

  /// The shard of a piece ("model/NAME", "optimizer/NAME/SLOT", also of a worker); null for a piece of a whole tensor.
  const ParameterShard* shard_of(const FlatPiece& piece) const;
  /// The boxes of whole tensors that this rank writes. `scratch` holds rows that had to be copied.
  std::vector<TensorPiece> to_save(const std::vector<FlatPiece>& pieces, std::vector<std::vector<char>>& scratch) const;
};

/// Error(kBadInput) naming the piece where checkpoints cannot hold its type.
DType dtype_of(const FlatPiece& piece);
/// The LibTorch type of a DType; empty if there is none.
std::optional<at::ScalarType> torch_type_of(int dtype);
/// The file type of a LibTorch type; empty if there is none.
std::optional<DType> stored_type(at::ScalarType type);

/// As dtype_of(), for a tensor called `name`.
DType dtype_of_tensor(const std::string& name, const at::Tensor& tensor);

/// Pieces that alias the module's buffers, each once. Error(kBadInput) for one that is not contiguous.
std::vector<FlatPiece> buffer_pieces(const torch::nn::Module& module);

struct CheckpointContent {
  std::string folder;       ///< The checkpoint is a folder in it.
  bool makes_above = true;  ///< Make missing parent folders; false for a run, whose folder may have been moved.
  int64_t step = 0;
  int num_kept = 2;                              ///< Newest checkpoints that are kept, including this one.
  int64_t best_step = -1;                        ///< Its checkpoint is kept as well; -1: none.
  std::function<std::vector<FlatPiece>()> mine;  ///< The pieces of this rank, including buffers.
  std::function<Json()> state;                   ///< Called on rank 0.
};
/// Collective. Returns the path on every rank. If one rank fails, all throw an Error that begins with `what`.
std::string write_checkpoint(Group& group, const ParameterPlaces& places, const CheckpointContent& content, const std::string& what);

/// Error(kBadInput) that begins with `option` for a piece that the checkpoint lacks or has in another shape or type.
void check_piece(const Checkpoint& checkpoint, const ParameterPlaces& places, const FlatPiece& piece, const std::string& option = "");
/// Reads a piece, for which check_piece() passes, into its memory.
void read_piece(const Checkpoint& checkpoint, const ParameterPlaces& places, FlatPiece& piece);

}  // namespace cohort
