#pragma once
// Where this rank's parameters lie in the whole model: what makes a checkpoint the same whatever the layout.

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

/// A value. The default: every parameter is whole here.
struct ParameterPlaces {
  std::map<std::string, ParameterShard> shards;  ///< By name; what is not there is whole on each rank of the tensor axis.
  bool saves_whole = true;                       ///< Whether this rank saves parameters that are whole on several ranks,
  bool saves_buffers = true;                     ///< and its buffers.
  std::map<std::string, std::string> aliases;    ///< Of the whole model: other name -> name under which a tied weight is saved.

  /// The shard that a piece ("model/NAME", "optimizer/NAME/SLOT", also of a worker) is a part of, or null: the piece is of a whole tensor.
  const ParameterShard* shard_of(const FlatPiece& piece) const;
  /// What this rank writes of `pieces`: boxes of the whole tensors. Memory of rows that had to be copied is in `scratch`.
  std::vector<TensorPiece> to_save(const std::vector<FlatPiece>& pieces, std::vector<std::vector<char>>& scratch) const;
};

/// Whether checkpoints have a name for that type.
bool can_be_saved(at::ScalarType type);
/// Error(kBadInput) naming the piece where checkpoints cannot hold its type.
DType dtype_of(const FlatPiece& piece);
/// The reverse, of a DType as a number; empty for one that LibTorch has not.
std::optional<at::ScalarType> torch_type_of(int dtype);
/// The other way; none for a type that no file holds.
std::optional<DType> stored_type(at::ScalarType type);

/// How files call the type of `tensor`; Error(kBadInput) naming it for one that no checkpoint holds.
DType dtype_of_tensor(const std::string& name, const at::Tensor& tensor);

// A checkpoint that all ranks write together, each what it owns, and a rank's pieces read back from one.

/// Of each buffer once, aliases of its memory. Error(kBadInput) for one that is not contiguous.
std::vector<FlatPiece> buffer_pieces(const torch::nn::Module& module);

struct CheckpointContent {
  std::string folder;       ///< The checkpoint becomes a folder in it.
  bool makes_above = true;  ///< Folders above it too; a run's is not made again where it was moved or removed.
  int64_t step = 0;
  int num_kept = 2;                              ///< Newest checkpoints that stay, this one among them.
  int64_t best_step = -1;                        ///< Whose checkpoint stays as well; -1: none's.
  std::function<std::vector<FlatPiece>()> mine;  ///< What this rank writes, buffers included.
  std::function<Json()> state;                   ///< Asked of rank 0.
};
/// Collective. Returns the path on every rank. Errors on every rank where any cannot, beginning with `what`.
std::string write_checkpoint(Group& group, const ParameterPlaces& places, const CheckpointContent& content, const std::string& what);

/// Reads a piece into its memory. Its name, shape and type must be those of the checkpoint.
void read_piece(const Checkpoint& checkpoint, const ParameterPlaces& places, FlatPiece& piece);

}  // namespace cohort
