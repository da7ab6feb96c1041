// A small multi-branch network (Szegedy et al. 2014, "Going deeper with convolutions", section 4 and figure 2b): the model whose layers
// can work side by side.
//
//   {n, c, h, w} -> conv 3x3 {n, 3k, h, w} -> max-pool 2x2 {n, 3k, h/2, w/2} -> module x blocks {n, 4k, ..}
//                -> mean over positions {n, 4k} -> linear {n, classes}
//   module(x)     = join of four branches along the channels, each of x's height and width:
//                     1x1: conv 1x1                              -> k
//                     3x3: conv 1x1 -> 3k/2, then conv 3x3       -> 2k
//                     5x5: conv 1x1 -> k/4,  then conv 5x5       -> k/2
//                     pool: max-pool 3x3 stride 1, then conv 1x1 -> k/2
//
// n samples, c channels, k the option width. Every convolution is followed by ReLU (behind its norm, if any). A 2x2 max-pool stands after
// each second module, where another follows and both sides are at least 2; sides round down. Branches are edges of the graph that
// meet only in the join. width=64 makes the first module the paper's "3a", 192 channels to 256. Where we differ: every module has the
// same widths (the paper's grow), the stem is one convolution, for small pictures; no auxiliary outputs and no dropout; He
// initialisation.

#include <algorithm>

#include "cohort/models/parts.h"

namespace cohort::families {
namespace {

class InceptionBuilder {
 public:
  InceptionBuilder(LayerGraph& graph, const Norm& norm, int64_t width) : graph_(graph), norm_(norm), width_(width) {}

  /// Convolution, norm and ReLU; returns the index of the last.
  int conv(const std::string& prefix, int64_t from, int64_t to, int64_t kernel, std::vector<int> inputs = {}) {
    const bool bias = norm_.kind == "none" || norm_.kind == "group";  // Batch norm cancels a bias.
    add_conv(graph_, prefix + "_conv", from, to, kernel, 1, bias, std::move(inputs));
    add_norm(graph_, prefix + "_norm", norm_, to);
    return add_relu(graph_, prefix + "_relu");
  }

  /// Adds a module that reads layer `input` of `from` channels; returns the index of its output.
  int module(const std::string& name, int input, int64_t from) {
    const int ones = conv(name + "_1x1", from, width_, 1, {input});
    conv(name + "_3x3_reduce", from, part(3, 2), 1, {input});
    const int threes = conv(name + "_3x3", part(3, 2), 2 * width_, 3);
    conv(name + "_5x5_reduce", from, part(1, 4), 1, {input});
    const int fives = conv(name + "_5x5", part(1, 4), part(1, 2), 5);
    add_max_pool(graph_, name + "_pool", 3, 1, 1, {input});
    const int pooled = conv(name + "_pool", from, part(1, 2), 1);
    return add_concat(graph_, name + "_join", {ones, threes, fives, pooled});
  }
  int64_t module_channels() const { return 3 * width_ + 2 * part(1, 2); }

 private:
  int64_t part(int64_t numerator, int64_t denominator) const { return std::max<int64_t>(1, width_ * numerator / denominator); }

  LayerGraph& graph_;
  const Norm& norm_;
  int64_t width_;
};

}  // namespace

BuiltModel inception(const ModelOptions& options) {
  const ImageInput image = image_input(options, "inception");
  const int64_t width = options.integer("width", 16, 1, 1 << 20);
  const int64_t num_blocks = options.integer("blocks", 2, 1, 1000);
  auto graph = std::make_shared<LayerGraph>();
  const Norm norm = norm_option(options, "none", *graph);
  InceptionBuilder builder(*graph, norm, width);

  int64_t channels = 3 * width, height = image.height / 2, breadth = image.width / 2;
  builder.conv("stem", image.channels, channels, 3);
  int last = add_max_pool(*graph, "stem_pool", 2, 2);
  for (int64_t block = 1; block <= num_blocks; ++block) {
    last = builder.module("block" + std::to_string(block), last, channels);
    channels = builder.module_channels();
    if (block % 2 == 0 && block < num_blocks && height >= 2 && breadth >= 2) {
      last = add_max_pool(*graph, "pool" + std::to_string(block / 2), 2, 2);
      height /= 2;
      breadth /= 2;
    }
  }
  add_global_mean(*graph, "mean");
  add_linear(*graph, "output", channels, image.num_classes);
  initialise_he(*graph);
  return graph;
}

}  // namespace cohort::families
