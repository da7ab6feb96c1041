#pragma once
// A model whose layers sleep instead of computing: sleeping ranks need no processor, so that 8 of them run undisturbed on a machine with 2
// cores.

#include <memory>
#include <vector>

namespace cohort {

class LayerGraph;

/// Seconds of one micro-batch.
struct Delays {
  double forward = 0, backward_input = 0, backward_weight = 0;
};

/// A chain of one layer for each of `delays`; its input and output are {1}.
std::shared_ptr<LayerGraph> sleeping_model(const std::vector<Delays>& delays);

}  // namespace cohort
