#include "cohort/train/pruning/prunable.h"

#include <c10/util/accumulate.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/train/pruning/layer_sparsity.h"

namespace cohort {
namespace {

bool is_embedding(const torch::nn::Module& module) {
  return dynamic_cast<const torch::nn::EmbeddingImpl*>(&module) || dynamic_cast<const torch::nn::EmbeddingBagImpl*>(&module);
}

/// Columns of a row: a kernel {out, in, ...} has in x ... of them.
int64_t columns_of(const at::Tensor& tensor) { return tensor.size(0) == 0 ? 0 : tensor.numel() / tensor.size(0); }

}  // namespace

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

}  // namespace cohort
