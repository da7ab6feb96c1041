#pragma once
// The state of LibTorch's own optimizers under the names that checkpoints have, so that a training goes on with another optimizer object,
// layout or number of ranks.

#include <torch/optim/optimizer.h>

#include <string>
#include <vector>

#include "cohort/parallel/common/flat_piece.h"
#include "cohort/parallel/optimizer/update.h"
#include "cohort/session/parallel.h"

namespace cohort {

struct NamedTensor;

/// The rule that LibTorch's options mean, and the learning rate in them. Error(kBadInput) for what ours does not do (amsgrad, dampening).
UpdateRule update_rule_of(const OptimizerOptions& options, double* learning_rate);

/// "optimizer/PARAMETER/SLOT" of SGD with momentum, Adam and AdamW, as ShardOptimizer names them: whole tensors that alias the optimizer's
/// own. State that it has not made yet is made, with zeros. Error(kBadInput) for another optimizer, and for a parameter that is not among
/// `parameters`.
std::vector<FlatPiece> optimizer_pieces(torch::optim::Optimizer& optimizer, const std::vector<NamedTensor>& parameters);
/// After values were read into them: LibTorch keeps the number of steps apart.
void optimizer_pieces_loaded(torch::optim::Optimizer& optimizer, const std::vector<FlatPiece>& pieces,
                             const std::vector<NamedTensor>& parameters);

}  // namespace cohort
