#pragma once
// The model that a training begins with: built from the seed, with the loss of --loss, the weights of --init-from, and the frozen
// parameters of --freeze. Every rank builds the same whole model before a layout divides it.

#include <memory>
#include <string>

#include "cohort/data/source/source.h"
#include "cohort/job/config.h"

namespace cohort {

class LayerGraph;

struct InitialModel {
  std::shared_ptr<LayerGraph> model;
  std::string taken;   ///< A sentence on --init-from; empty without it.
  std::string frozen;  ///< A sentence on --freeze; empty without it.
};

/// --init-from is a run, a checkpoint, or any safetensors file with the model's tensor names. Tensors that differ only in the number of
/// outputs of these data keep their new values (a new head). Error(kBadInput) for a file that is missing or damaged, for other tensors that
/// differ or are missing, and for a pattern of --freeze that matches nothing, or leaves nothing to train. A resumed run gets its weights
/// from its checkpoint.
InitialModel initial_model(const Config& config, const DataShape& shape);
/// Without the weights of --init-from, for a worker that gets them from its server.
InitialModel initial_model_without_weights(const Config& config, const DataShape& shape);

}  // namespace cohort
