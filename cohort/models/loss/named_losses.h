#pragma once
// Losses that --loss names. Each is a mean over samples, so losses of parts of a batch, weighted by their samples, add up to that of the
// whole on every layout.
//
//   cross-entropy   of a softmax over the classes; for classes the one that is meant where nothing is said
//   mse             squared error: of a regression the one that is meant where nothing is said; of classes, of the scores against 1 for the
//                   right class and 0 for the others (Hui and Belkin 2021, "Evaluation of neural architectures trained with square loss")
//   binary          each score is a yes or no of its own, cross-entropy of a sigmoid, mean over the scores; of labels the one that is meant
//                   where nothing is said

#include <string>

#include "cohort/data/source/source.h"
#include "cohort/models/graph/layer_graph.h"

namespace cohort {

/// Makes `model` train on the loss `name`; "auto" changes nothing. Error(kBadInput) for another name, for a loss that these data have no
/// targets for, and for a model that has a loss of its own.
void set_named_loss(LayerGraph& model, const std::string& name, const DataShape& data);

}  // namespace cohort
