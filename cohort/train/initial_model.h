#pragma once
// The model that a training begins with: built from the seed, with the loss that --loss names, with what --init-from has put into it, and
// with what --freeze names held as it is. Every rank makes it whole, before a layout divides it, so it is the same on all of them.

#include <memory>
#include <string>

#include "cohort/data/source/source.h"
#include "cohort/job/config.h"

namespace cohort {

class LayerGraph;

struct InitialModel {
  std::shared_ptr<LayerGraph> model;
  std::string taken;   ///< A sentence on what --init-from gave and what it did not; empty without.
  std::string frozen;  ///< A sentence on what --freeze holds; empty without.
};

/// --init-from: a run, a checkpoint, or a safetensors file of anybody whose tensors have the model's names. Tensors that differ in nothing
/// but the number of outputs of these data keep their new values: a new head. Error(kBadInput) in one line for a file that is missing or
/// damaged, for other tensors that differ or are not there, and for a pattern of --freeze that names nothing, or leaves nothing to train.
InitialModel initial_model(const Config& config, const DataShape& shape);
/// The same where the weights come from elsewhere, a checkpoint of the run itself or the one that serves them.
InitialModel initial_model_without_weights(const Config& config, const DataShape& shape);

}  // namespace cohort
