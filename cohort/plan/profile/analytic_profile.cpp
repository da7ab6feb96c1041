// Seconds and bytes of layers from their shapes.
//
//   products   2 x rows x columns x inner operations, rows times the micro-batch, at the device's rate for the precision; a result of E
//              elements and w columns reaches E / (E + half_rate_elements) x w / (w + half_rate_width) of it, as in
//              bench/published/forecast/transformer_step.cpp. tp divides columns
//   the rest   bytes moved over the memory's rate
//   launch     a layer takes at least the launch time of its kernels: launch_seconds is that of a Transformer block, which has 20
//   backward   the gradient of the input: every product once more (those without weights, of attention, twice: both factors), and the
//              rest; that of the weight: products with weights once more
//   stash      what autograd saves, docs/algorithms/analytic_profiles.md; fp32 has 4 bytes an element. In half precision products save
//              2-byte copies of their inputs, and values between them are half as large
//
// Weights are read once by each part that uses them, and their gradients written once. Not modelled: caches, fused kernels, and the stash
// of the CPU's attention in bf16.
#include "cohort/plan/profile/analytic_profile.h"

#include <algorithm>
#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/data/model/model_options.h"
#include "cohort/data/text_source.h"
#include "cohort/plan/profile/shape_graph.h"

namespace cohort {
namespace {

constexpr double kBlockKernels = 20;

/// The shape of a sample, from the name of the data.
DataShape shape_of(const std::string& data, bool is_text, int64_t context, int64_t image_size) {
  const std::string name = data.substr(0, data.find(':'));
  const auto text = [&] { return DataShape{DataShape::Kind::kText, {context}, 256, {}}; };
  const auto pictures = [&](int64_t channels, int64_t side) {
    if (image_size > 0) side = image_size;
    return DataShape{DataShape::Kind::kImage, {channels, side, side}, 10, {}};
  };
  if (data.empty()) return is_text ? text() : pictures(1, 28);
  if (name == "text") {
    const std::string vocabulary = parse_text_specification(data.substr(std::min(data.size(), name.size() + 1))).vocabulary;
    DataShape shape = text();
    if (!vocabulary.empty()) shape.num_classes = read_vocabulary(vocabulary).size();
    return shape;
  }
  if (data == "synthetic:text" || data.starts_with("synthetic:text,")) return text();
  if (name == "fashion-mnist" || name == "mnist") return pictures(1, 28);
  if (name == "cifar10") return pictures(3, 32);
  if (name != "synthetic")
    fail(ErrorCode::kBadInput, name_settings("--data "), data,
         ": its shape is not in its name; use synthetic:CxHxW,classes=N of the same shape");
  DataShape shape{DataShape::Kind::kImage, {}, 10, {}};
  const std::vector<std::string> words = split(data.substr(std::min(data.size(), data.find(':') + 1)), ',');
  for (const std::string& side : split(words[0], 'x')) {
    const auto number = parse_integer(side);
    if (!number || *number < 1 || *number > (1 << 20))
      fail(ErrorCode::kBadInput, name_settings("--data "), data, ": expected synthetic:CxHxW[,classes=N]");
    shape.input.push_back(*number);
  }
  for (size_t i = 1; i < words.size(); ++i) {
    const bool is_labels = words[i].starts_with("labels="), is_scores = is_labels || words[i].starts_with("classes=");
    const auto number = is_scores ? parse_integer(words[i].substr(words[i].find('=') + 1)) : std::nullopt;
    if (is_scores ? !number || *number < 1
                  : !words[i].starts_with("samples=") && !words[i].starts_with("noise=") && !words[i].starts_with("seed="))
      fail(ErrorCode::kBadInput, name_settings("--data "), data, ": '", words[i],
           "' is unknown; expected classes=N, labels=N, samples=N, noise=X, seed=N");
    if (is_scores) shape.num_classes = *number;
    shape.labels = shape.labels || is_labels;
  }
  if (shape.input.size() != 3) fail(ErrorCode::kBadInput, name_settings("--data "), data, ": a model of pictures needs CxHxW");
  return shape;
}

bool is_product(const LayerShape& layer) { return !layer.products.empty(); }

class ShapeCosts {
 public:
  ShapeCosts(const ShapeGraph& graph, const DeviceKind& device, const std::string& precision, int tp)
      : graph_(graph), device_(device), precision_(precision), tp_(tp), element_bytes_(precision == "fp32" ? 4 : 2) {}

  LayerCost of(size_t index, int64_t micro_batch) const {
    const LayerShape& layer = graph_.layers()[index];
    const auto b = static_cast<double>(micro_batch);
    const double parts = divides(layer) ? tp_ : 1;
    double with_weights = 0, of_activations = 0;
    for (const Product& product : layer.products)
      (product.of_activations ? of_activations : with_weights) += seconds(product, b, parts, layer.divides_inner);
    const double moved = (layer.moved_elements - layer.tensor_replicated_moved) / parts + layer.tensor_replicated_moved;
    const double rest = b * moved * element_bytes_ / device_.memory_bytes_per_second;
    const double weights = 4.0 * static_cast<double>(layer.num_trained) / parts / device_.memory_bytes_per_second;
    const double read = layer.products.empty() ? 0 : weights;
    const double launch = device_.launch_seconds * layer.num_kernels / kBlockKernels;
    LayerCost cost;
    cost.forward_seconds = std::max(launch, with_weights + of_activations + rest + read);
    cost.backward_input_seconds = std::max(launch, with_weights + 2 * of_activations + rest + read);
    // Norms and embeddings read inputs and output gradients once more.
    if (layer.num_trained > 0 || layer.tied_to >= 0)
      cost.backward_weight_seconds = weights + (layer.products.empty() ? rest / 2 : with_weights);
    cost.stash_bytes = bytes(b * stash_bytes(index, parts));
    const double output_parts = layer.divides_output ? parts : 1;
    cost.output_bytes = bytes(b * static_cast<double>(layer.output_elements) * output_bytes(layer) / output_parts);
    cost.working_bytes = bytes(b * working_bytes(index, parts));
    return cost;
  }

 private:
  bool divides(const LayerShape& layer) const { return tp_ > 1 && layer.tensor_parts % tp_ == 0; }
  static int64_t bytes(double value) {
    constexpr double kMost = 0x1p44;
    if (value > kMost)
      fail(ErrorCode::kBadInput, "a layer of this model has ", value, " bytes of activations a micro-batch; at most ", kMost,
           " are planned for");
    return static_cast<int64_t>(std::ceil(value));
  }

  double seconds(const Product& product, double b, double parts, bool by_inner) const {
    const bool by_head = product.of_activations;  // tp divides heads: fewer products of the same size.
    const double rows = product.rows * (by_head ? 1 : b), times = product.times * (by_head ? b / parts : 1);
    const double columns = by_head || by_inner ? product.columns : std::max(1.0, product.columns / parts);
    const double inner = by_inner && !by_head ? std::max(1.0, product.inner / parts) : product.inner;
    const double rate = device_.flops_per_second(precision_) *
                        share_of_rate(rows * columns * (by_head ? times : 1), columns, device_.half_rate_elements, device_.half_rate_width);
    return 2 * rows * columns * inner * times / rate;
  }

  /// Norms and residual sums stay fp32 in half precision.
  double output_bytes(const LayerShape& layer) const {
    const bool is_half = element_bytes_ == 2 && (layer.kind == "linear" || layer.kind == "conv2d" || layer.kind == "relu" ||
                                                 layer.kind == "maxpool2d" || layer.kind == "flatten");
    return is_half ? 2 : 4;
  }

  /// Per sample: gradients of output and inputs; also of hidden units of a block, and the loss and output of the last layer.
  double working_bytes(size_t index, double parts) const {
    const LayerShape& layer = graph_.layers()[index];
    const auto outputs = static_cast<double>(layer.output_elements);
    double elements = outputs;
    for (const int input : layer.inputs)
      if (input >= 0) elements += static_cast<double>(graph_.shape(input).elements());
    if (layer.kind == "transformerblock") elements += 8 * outputs / parts;  // Twice its 4 widths of hidden units.
    if (index + 1 == graph_.layers().size()) elements += 2 * outputs;
    return 4 * elements;
  }

  /// Per sample. A layer's output counts as its own where it or a reader keeps it.
  double stash_bytes(size_t index, double parts) const {
    const LayerShape& layer = graph_.layers()[index];
    const double own = static_cast<double>(layer.whole_stash_elements) +
                       static_cast<double>(layer.own_stash_elements - layer.whole_stash_elements) / parts;
    double elements_bytes = own * (layer.kind == "transformerblock" && element_bytes_ == 2 ? 3 : 4);
    const double output_parts = layer.divides_output ? parts : 1, input_parts = layer.divides_inner ? parts : 1;
    if (!layer.is_view && kept(index)) elements_bytes += static_cast<double>(layer.output_elements) * output_bytes(layer) / output_parts;
    if (element_bytes_ == 2 && is_product(layer) && layer.kind != "transformerblock")
      for (const int input : layer.inputs) elements_bytes += 2.0 * static_cast<double>(graph_.shape(input).elements()) / input_parts;
    return elements_bytes;
  }

 public:
  /// Whether its output stays for a backward: its own, or a reader's, also behind views.
  bool kept(size_t index) const { return graph_.layers()[index].keeps_output || kept_by_readers(index); }
  bool kept_by_readers(size_t index) const {
    for (size_t reader = index + 1; reader < graph_.layers().size(); ++reader) {
      const LayerShape& layer = graph_.layers()[reader];
      if (std::find(layer.inputs.begin(), layer.inputs.end(), static_cast<int>(index)) == layer.inputs.end()) continue;
      const bool copies = element_bytes_ == 2 && is_product(layer) && layer.kind != "transformerblock";
      if ((layer.keeps_input && !copies) || (layer.is_view && kept_by_readers(reader))) return true;
    }
    return false;
  }

 private:
  const ShapeGraph& graph_;
  const DeviceKind& device_;
  std::string precision_;
  int tp_;
  double element_bytes_;
};

/// 1, 2, 4, ... up to the devices of the largest host, where a layer can be divided so.
std::vector<int> tensor_degrees(const Cluster& cluster, const ShapeGraph& graph) {
  int largest = 1;
  for (const HostGroup& group : cluster.hosts) largest = std::max(largest, group.devices_per_host);
  std::vector<int> degrees = {1};
  for (int degree = 2; degree <= largest; degree *= 2)
    if (std::any_of(graph.layers().begin(), graph.layers().end(),
                    [&](const LayerShape& layer) { return layer.tensor_parts > 1 && layer.tensor_parts % degree == 0; }))
      degrees.push_back(degree);
  return degrees;
}

std::vector<int64_t> sizes_of(const AnalyticOptions& options) {
  std::vector<int64_t> sizes = options.micro_batches;
  if (sizes.empty())
    for (int64_t size = 1; size <= 256; size *= 2) sizes.push_back(size);
  for (const int64_t size : sizes)
    if (size < 1) fail(ErrorCode::kBadInput, "invalid micro-batch: ", size, " samples; expected 1 or more");
  sort_unique(sizes);
  return sizes;
}

}  // namespace

std::vector<std::string> analytic_models() {
  std::vector<std::string> names;
  for (const AnalyticFamily& family : analytic_families()) names.emplace_back(family.name);
  return names;
}

ModelProfile analytic_profile(const std::string& model, const Cluster& cluster, const AnalyticOptions& options) {
  ModelSpecification asked = parse_model(model);
  const auto family = std::find_if(analytic_families().begin(), analytic_families().end(),
                                   [&](const AnalyticFamily& each) { return each.name == asked.name; });
  if (family == analytic_families().end())
    fail(ErrorCode::kBadInput, "no shapes are known of model '", asked.name, "'", did_you_mean(asked.name, analytic_models()),
         "; there are: ", join(analytic_models(), " "), name_settings("; others need a profile in a file"));
  if (options.context > 0 && !family->is_text)
    fail(ErrorCode::kBadInput, name_settings("--context "), options.context, " is for text, and model ", asked.name,
         " reads pictures; leave it out");
  if (options.image_size > 0 && family->is_text)
    fail(ErrorCode::kBadInput, name_settings("--image-size "), options.image_size, " is for pictures, and model ", asked.name,
         " reads text");
  if (options.image_size > 0 && options.data.starts_with("synthetic:"))
    fail(ErrorCode::kBadInput, name_settings("--image-size "), options.image_size, name_settings(" is for pictures of files, and --data "),
         options.data, " makes its samples up; write the size in synthetic:CxHxW");
  DataShape data = shape_of(options.data, family->is_text, options.context > 0 ? options.context : 64, options.image_size);
  if ((data.kind == DataShape::Kind::kText) != family->is_text)
    fail(ErrorCode::kBadInput, "model ", asked.name, family->is_text ? " reads text" : " reads pictures", name_settings(", and --data "),
         options.data, family->is_text ? " holds pictures" : " holds text");
  for (const char* key : {"context", "vocabulary"}) {
    const auto found = asked.values.find(key);
    if (!family->is_text || found == asked.values.end()) continue;
    const auto number = parse_integer(found->second);
    if (!number || *number < 1 || *number > (1 << 24))
      fail(ErrorCode::kBadInput, "model option ", key, "=", found->second, ": expected a whole number from 1 to ", 1 << 24);
    (key == std::string("context") ? data.input[0] : data.num_classes) = *number;
    asked.values.erase(found);
  }
  const ModelOptions model_options(data, asked.values);
  ShapeGraph graph = family->build(model_options);
  model_options.check_all_used(asked.name);
  graph.divide_tensors();

  ModelProfile profile{.model = model, .source = concat("from shapes, with the numbers of cluster '", cluster.name, "'")};
  for (size_t index = 0; index < graph.layers().size(); ++index) {
    const LayerShape& layer = graph.layers()[index];
    const ShapeCosts costs(graph, cluster.devices.front(), "fp32", 1);
    profile.layers.push_back({.name = layer.name,
                              .kind = layer.kind,
                              .num_trained = layer.num_trained,
                              .buffer_bytes = layer.buffer_bytes,
                              .output_kept = costs.kept_by_readers(index) ? OutputKept::kByReaders
                                             : layer.keeps_output         ? OutputKept::kByItself
                                                                          : OutputKept::kNo,
                              .tensor_parts = static_cast<int>(std::min<int64_t>(layer.tensor_parts, 1 << 30)),
                              .num_tensor_exchanges = layer.num_tensor_exchanges});
    std::vector<int> inputs = layer.inputs;
    sort_unique(inputs);
    for (const int input : inputs) profile.edges.emplace_back(input, static_cast<int>(index));
    if (layer.tied_to >= 0) profile.tied.emplace_back(layer.tied_to, static_cast<int>(index));
  }
  const std::vector<int64_t> sizes = sizes_of(options);
  std::vector<const DeviceKind*> kinds;
  for (const DeviceKind& kind : cluster.devices) kinds.push_back(&kind);
  std::sort(kinds.begin(), kinds.end(), [](const DeviceKind* a, const DeviceKind* b) { return a->name < b->name; });
  for (const DeviceKind* kind : kinds) {
    std::vector<std::string> precisions;
    for (const DeviceKind::Rate& rate : kind->rates) precisions.push_back(rate.precision);
    std::sort(precisions.begin(), precisions.end());
    for (const std::string& precision : precisions)
      for (const int degree : tensor_degrees(cluster, graph))
        for (const int64_t size : sizes) {
          ProfilePoint point{.device = kind->name, .precision = precision, .tp = degree, .micro_batch = size};
          const ShapeCosts costs(graph, *kind, precision, degree);
          for (size_t index = 0; index < graph.layers().size(); ++index) point.layers.push_back(costs.of(index, size));
          profile.points.push_back(std::move(point));
        }
  }
  return profile;
}

}  // namespace cohort
