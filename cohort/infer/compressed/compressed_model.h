#pragma once
// A model made to compute as a compressed file says, in memory or from a file.

#include "cohort/infer/compressed/coded_tensor.h"
#include "cohort/infer/compressed/compressed_form.h"

namespace cohort {

class LayerGraph;

/// Layers of `model`, whose weights may be any, get the kernels of `form`, and all other tensors are read: what the file keeps as codes is
/// decoded. The model is in eval mode then and has no weights that compute in int8 as floats: it can not be trained. Error(kBadInput) where
/// form and model are not of one another.
void make_compressed(LayerGraph& model, const CompressedForm& form, const ReadTensor& read);

}  // namespace cohort
