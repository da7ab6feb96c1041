#pragma once
// The module that a trained file holds: what trained_model.h and the verbs that use a model are made of.

#include <memory>

#include "cohort/data/source/source.h"
#include "cohort/infer/trained_file.h"

namespace cohort {

class LayerGraph;

/// Error(kBadInput) where this program does not have the file's model.
void check_is_known(const TrainedFile& file);
/// In eval mode, with the file's weights. Error(kBadInput) where this program does not have the model, or tensors differ from the file's.
std::shared_ptr<LayerGraph> restore_model(const TrainedFile& file, const DataShape& shape);

}  // namespace cohort
