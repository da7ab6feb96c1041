#pragma once
// A checkpoint that all ranks write together, each what it owns, and a rank's pieces read back from one.

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cohort/base/text/json_fwd.h"
#include "cohort/comm/group.h"
#include "cohort/parallel/common/flat_piece.h"
#include "cohort/train/model/parameter_places.h"

namespace cohort {

class Checkpoint;

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
