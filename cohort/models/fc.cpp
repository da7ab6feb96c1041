// Fully connected network (batch-size study, workload "FC": 1024; also 1024 x 2 and {64, 128, 256, 512, 1024, 2048} x 3).
//
//   {n, c, h, w} -> flatten {n, c h w} -> [linear, ReLU] x layers {n, hidden} -> linear {n, classes}
//
// n samples, c channels; rows of a table and other tensors likewise, and numbers to predict in place of classes. As in the paper; the
// weights have LibTorch's default initial values, not the authors'.

#include "cohort/models/parts.h"

namespace cohort::families {

BuiltModel fc(const ModelOptions& options) {
  const int64_t num_outputs = numbers_input(options, "fc");
  const int64_t hidden = options.integer("hidden", 1024);
  const int64_t num_layers = options.integer("layers", 1, 0, 1000);
  auto graph = std::make_shared<LayerGraph>();
  add_flatten(*graph, "flatten");
  int64_t features = options.data().input_elements();
  for (int64_t i = 1; i <= num_layers; ++i) {
    add_linear(*graph, "hidden" + std::to_string(i), features, hidden);
    add_relu(*graph, "relu" + std::to_string(i));
    features = hidden;
  }
  add_linear(*graph, "output", features, num_outputs);
  return graph;
}

}  // namespace cohort::families
