// VGG-11 without batch norm (batch-size study, workload "VGG-11"; Simonyan, Zisserman 2014, table 1, column A).
//
//   {n, c, h, w} -> conv 64, pool, conv 128, pool, conv 256 x 2, pool, conv 512 x 2, pool, conv 512 x 2, pool {n, 512, h/32, w/32}
//                -> flatten -> linear {n, hidden} -> linear {n, hidden} -> linear {n, classes}
//
// n samples, c channels; convolutions are 3x3 and, like the first two linear layers, followed by ReLU; pools are 2x2 and round down. Where
// we differ: pictures are not pooled below one pixel, so small ones work; hidden is 512 below 64 pixels (the paper's
// 4096 would be most of the model there); no dropout unless asked for; He initialisation (the paper: normal with variance
// 0.01), since LibTorch's default would shrink the signal in each of eleven layers.

#include "cohort/models/layers/dropout.h"
#include "cohort/models/parts.h"

namespace cohort::families {

BuiltModel vgg11(const ModelOptions& options) {
  const ImageInput image = image_input(options, "vgg11");
  const int64_t width = options.integer("width", 64, 1, 1 << 20);
  const int64_t hidden = options.integer("hidden", image.height < 64 ? 512 : 4096);
  const double dropout = options.number("dropout", 0.0, 0.0, 0.999);
  auto graph = std::make_shared<LayerGraph>();
  const Norm norm = norm_option(options, "none", *graph);

  struct Stage {
    int64_t multiplier, num_convs;
  };
  int64_t channels = image.channels, height = image.height, breadth = image.width;
  int conv = 0, pool = 0;
  for (const Stage stage : {Stage{1, 1}, {2, 1}, {4, 2}, {8, 2}, {8, 2}}) {
    for (int64_t i = 0; i < stage.num_convs; ++i) {
      const std::string number = std::to_string(++conv);
      // Batch norm cancels a bias.
      const bool bias = norm.kind == "none" || norm.kind == "group";
      add_conv(*graph, "conv" + number, channels, stage.multiplier * width, 3, 1, bias);
      channels = stage.multiplier * width;
      add_norm(*graph, "norm" + number, norm, channels);
      add_relu(*graph, "relu" + number);
    }
    if (height < 2 || breadth < 2) continue;
    add_max_pool(*graph, "pool" + std::to_string(++pool), 2, 2);
    height /= 2;
    breadth /= 2;
  }
  add_flatten(*graph, "flatten");
  int64_t features = channels * height * breadth;
  for (int i = 1; i <= 2; ++i) {
    const std::string number = std::to_string(i);
    add_linear(*graph, "hidden" + number, features, hidden);
    add_relu(*graph, "hidden_relu" + number);
    if (dropout > 0.0) graph->add("dropout" + number, "dropout", Dropout(dropout, i));
    features = hidden;
  }
  add_linear(*graph, "output", features, image.num_classes);
  initialise_he(*graph);
  return graph;
}

}  // namespace cohort::families
