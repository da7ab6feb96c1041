// Magnitude pruning while a model trains (Zhu and Gupta 2017, "To prune, or not to prune", arXiv 1710.01878), under every layout whose
// ranks know which weights they update. In a step that prunes, between the exchange of gradients and the update:
//
//   1. the smallest weights of each tensor are chosen, by their values before this update, so that the model has the schedule's sparsity;
//      ranks that divide a tensor choose together (parallel/prune/smallest_weights.cpp)
//   2. each rank updates what it owns, and sets pruned weights and their momentum to zero (parallel/prune/update_pruned.h)
//   3. weights are gathered and read by others after that, so no rank ever sees a pruned weight that is not zero
//
// After the first pruning a weight that is zero stays zero. So the weights are their own mask: it is the same on every rank and layout, and
// a checkpoint needs nothing else.
// Cost: a pass over the weights that a rank owns in each step; 5 more and 5 small messages in steps that prune.
//
// The sparsity of a tensor n1 x n2 x ... is by Erdos-Renyi with kernels (Evci et al. 2020, "Rigging the lottery", arXiv 1911.11134,
// section 3; Mocanu et al. 2018 for matrices): it keeps the part
//
//   density = min(1, e (n1 + n2 + ...) / (n1 n2 ...))
//
// of its elements, with the one e for which all tensors together have the wanted sparsity. So large matrices are pruned most, and small
// tensors, a last layer or an early convolution, least. e is found by removing the tensors that would be dense one after the other, the
// least size / sum of dimensions first. Cost: a sort.
#include "cohort/train/model/pruner.h"

#include <c10/util/accumulate.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/parallel/prune/smallest_weights.h"

namespace cohort {
namespace {

double elements(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), 1.0, [](double product, int64_t n) { return product * static_cast<double>(n); });
}

/// The elements that a tensor keeps for e = 1.
double weight(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), 0.0, [](double sum, int64_t n) { return sum + static_cast<double>(n); });
}

bool is_embedding(const torch::nn::Module& module) {
  return dynamic_cast<const torch::nn::EmbeddingImpl*>(&module) || dynamic_cast<const torch::nn::EmbeddingBagImpl*>(&module);
}

/// Elements of a row of a kernel {out, in, ...}.
int64_t columns_of(const at::Tensor& tensor) { return tensor.size(0) == 0 ? 0 : tensor.numel() / tensor.size(0); }

}  // namespace

std::vector<double> layer_sparsities(const std::vector<std::vector<int64_t>>& shapes, double sparsity) {
  std::vector<size_t> order(shapes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto dense_at = [&](size_t i) { return elements(shapes[i]) / weight(shapes[i]); };  // The e from which a tensor is dense.
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return dense_at(a) < dense_at(b); });
  double kept = 0, weights = 0;
  for (const std::vector<int64_t>& shape : shapes) {
    kept += (1 - sparsity) * elements(shape);
    weights += weight(shape);
  }
  std::vector<double> found(shapes.size(), 0.0);
  for (const size_t i : order) {
    const double e = kept / weights;
    if (e >= dense_at(i)) {
      kept -= elements(shapes[i]);
      weights -= weight(shapes[i]);
    } else {
      found[i] = 1 - e / dense_at(i);
    }
  }
  return found;
}

int64_t PrunableTensor::num_elements() const { return c10::multiply_integers(shape); }

int64_t PrunableModel::num_elements() const {
  int64_t sum = 0;
  for (const PrunableTensor& tensor : tensors) sum += tensor.num_elements();
  return sum;
}

std::vector<double> PrunableModel::sparsities(const Pruning& pruning, double sparsity) const {
  if (pruning.is_uniform) return std::vector<double>(tensors.size(), sparsity);
  std::vector<std::vector<int64_t>> shapes;
  for (const PrunableTensor& tensor : tensors) shapes.push_back(tensor.shape);
  return layer_sparsities(shapes, sparsity);
}

PrunableModel prunable_tensors(const LayerGraph& model, Pruning::Granularity granularity) {
  PrunableModel out;
  std::set<const c10::TensorImpl*> of_embeddings;  // An output layer may be tied to one.
  for (const auto& module : model.modules())
    if (is_embedding(*module))
      for (const at::Tensor& parameter : module->parameters(/*recurse=*/false)) of_embeddings.insert(parameter.unsafeGetTensorImpl());
  bool is_first = true;
  for (const auto& [name, tensor] : distinct_parameters(model)) {
    out.num_parameters += tensor.numel();
    const std::string own_name = name.substr(name.rfind('.') + 1);
    if (tensor.dim() < 2 || tensor.numel() == 0 || own_name.find("weight") == std::string::npos) continue;
    const bool is_first_kernel = is_first && tensor.dim() > 2;
    is_first = false;
    const int64_t columns = columns_of(tensor);
    if (of_embeddings.contains(tensor.unsafeGetTensorImpl())) {
      out.left.push_back(name + " (an embedding)");
    } else if (!tensor.requires_grad()) {
      out.left.push_back(name + " (frozen)");
    } else if (is_first_kernel) {
      out.left.push_back(name + " (the first convolution)");
    } else if (granularity == Pruning::Granularity::kTwoOfFour && columns % 4 != 0) {
      out.left.push_back(concat(name, " (", columns, " columns, no multiple of 4)"));
    } else {
      out.tensors.push_back({name, tensor.sizes().vec()});
    }
  }
  if (out.tensors.empty())
    fail(ErrorCode::kBadInput, name_settings("--prune: "), model.title(), " has no matrix to prune",
         out.left.empty() ? "" : concat("; left: ", join(out.left, ", ")));
  return out;
}

std::string describe_pruning(const std::string& how, const Pruning& pruning, const PrunableModel& model, const PruningSchedule& schedule) {
  std::string text =
      concat("prune ", how, ": of ", model.tensors.size(), model.tensors.size() == 1 ? " tensor" : " tensors", " with ",
             with_commas(model.num_elements()), " of ", with_commas(model.num_parameters), " parameters, from step ", schedule.begin() + 1,
             " to ", schedule.end() + 1, schedule.interval() == 1 ? std::string() : concat(", every ", schedule.interval(), " steps"));
  if (!pruning.is_uniform && model.tensors.size() > 1) {
    const std::vector<double> parts = model.sparsities(pruning, pruning.sparsity);
    const auto [least, most] = std::minmax_element(parts.begin(), parts.end());
    const auto part_of = [&](const auto& part) {
      return concat(std::round(1000 * *part) / 10, " % of ", model.tensors[static_cast<size_t>(part - parts.begin())].name);
    };
    text += concat("; by their shapes from ", part_of(least), " to ", part_of(most));
  }
  if (!model.left.empty()) text += "; left: " + join(model.left, ", ");
  return text;
}

Pruner::Pruner(const Pruning& pruning, const PruningSchedule& schedule, const PrunableModel& prunable, const LayerGraph& part,
               Strategy& strategy, Group group)
    : pruning_(pruning), schedule_(schedule), prunable_(prunable), strategy_(strategy), group_(std::move(group)) {
  const ShardOptimizer* const optimizer = strategy.optimizer();
  if (!optimizer)
    fail(ErrorCode::kBadInput, name_settings("--prune: this layout's workers update weights that others update too; use sync=step"));
  std::map<std::string, int64_t> segments;
  for (size_t i = 0; i < optimizer->size(); ++i) segments[optimizer->segment(i).parameter] = static_cast<int64_t>(i);
  std::map<std::string, bool> is_here;
  for (const NamedTensor& parameter : distinct_parameters(part)) is_here[parameter.name] = true;
  for (size_t place = 0; place < prunable.tensors.size(); ++place) {
    const std::string& name = prunable.tensors[place].name;
    if (!is_here.contains(name)) continue;
    places_.push_back(place);
    segments_.push_back(segments.contains(name) ? segments[name] : -1);
  }
}

void Pruner::begin_update(int64_t number) {
  if (!schedule_.has_begun(number)) return;
  ShardOptimizer& optimizer = *strategy_.optimizer();
  for (size_t i = 0; i < segments_.size() && !keeps_zeros_; ++i)
    if (segments_[i] >= 0) optimizer.keep_zeros(static_cast<size_t>(segments_[i]));
  keeps_zeros_ = true;
  if (const std::optional<double> sparsity = schedule_.at(number)) choose(*sparsity);
}

void Pruner::choose(double sparsity) {
  ShardOptimizer& optimizer = *strategy_.optimizer();
  const std::vector<double> sparsities = prunable_.sparsities(pruning_, sparsity);
  std::vector<DividedTensor> divided;
  for (size_t i = 0; i < places_.size(); ++i) {
    const PrunableTensor& whole = prunable_.tensors[places_[i]];
    DividedTensor tensor{
        .name = whole.name, .num_elements = whole.num_elements(), .own = {}, .begin = 0, .sparsity = sparsities[places_[i]]};
    if (segments_[i] >= 0) {
      const Segment& segment = optimizer.segment(static_cast<size_t>(segments_[i]));
      tensor.own = segment.weights.cpu();
      tensor.begin = segment.begin;
    }
    divided.push_back(std::move(tensor));
  }
  const std::vector<at::Tensor> keep =
      keep_all_but_smallest(divided, pruning_.granularity, strategy_.divides_optimizer() ? &group_ : nullptr);
  for (size_t i = 0; i < keep.size(); ++i) {
    if (segments_[i] < 0 || !keep[i].defined()) continue;
    const auto segment = static_cast<size_t>(segments_[i]);
    optimizer.prune(segment, keep[i].to(optimizer.segment(segment).weights.device()));
  }
  chose_ = true;
}

void Pruner::end_update() {
  for (size_t i = 0; i < segments_.size() && chose_; ++i)
    if (segments_[i] >= 0) strategy_.optimizer()->prune(static_cast<size_t>(segments_[i]), {});
  chose_ = false;
}

}  // namespace cohort
