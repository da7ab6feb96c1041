#include "cohort/session/explain.h"

#include <algorithm>
#include <utility>

#include "cohort/base/error.h"
#include "cohort/world/uncaught.h"

namespace cohort {
namespace {

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string forms_of(const LayerGraph::Inputs& tensors) {
  std::string text;
  for (const at::Tensor& tensor : tensors) text += (text.empty() ? "" : " and ") + form_of(tensor);
  return text;
}

}  // namespace

std::string form_of(const at::Tensor& tensor) {
  return tensor.defined() ? concat(c10::toString(tensor.scalar_type()), " ", tensor.sizes()) : "no tensor";
}

void explain(const c10::Error& error, const std::string& what) {
  const std::string text = sentence_of(error);
  const bool wants_memory = says(text, "allocate memory") || says(text, "out of memory");
  fail(wants_memory ? ErrorCode::kFailed : ErrorCode::kBadInput, what, ": ", text);
}

void name_layers_in_errors(LayerGraph& graph, const std::shared_ptr<const std::string>& where) {
  for (size_t i = 0; i < graph.layers().size(); ++i) {
    const LayerGraph::Layer& layer = graph.layers()[i];
    if (!layer.function) continue;  // Another rank's.
    const auto run = [function = layer.function, where, name = layer.name, kind = layer.kind](const LayerGraph::Inputs& in) {
      try {
        return function(in);
      } catch (const c10::Error& error) {
        if (says(error.what_without_backtrace(), "used in an in-place operation")) throw;  // The stage knows what to do.
        explain(error, concat(*where, "layer '", name, "' (", kind, ") cannot take ", forms_of(in)));
      }
    };
    graph.replace_layer(i, nullptr, run);
  }
}

at::Tensor forward_by_layers(torch::nn::SequentialImpl& sequential, const at::Tensor& input) {
  torch::nn::AnyValue value{at::Tensor(input)};
  for (size_t i = 0; i < sequential.size(); ++i) {
    torch::nn::AnyModule& layer = *(sequential.begin() + static_cast<int64_t>(i));
    const at::Tensor* const tensor = value.try_get<at::Tensor>();
    const at::Tensor given = tensor ? *tensor : at::Tensor();
    try {
      value = layer.any_forward(std::move(value));
    } catch (const c10::Error& error) {
      const std::vector<std::string> names = sequential.named_children().keys();
      explain(error, concat("layer '", i < names.size() ? names[i] : std::to_string(i), "' (", layer.ptr()->name(), ") cannot take ",
                            form_of(given)));
    }
  }
  if (const at::Tensor* const output = value.try_get<at::Tensor>()) return *output;
  fail(ErrorCode::kBadInput, "forward(): the last layer of the Sequential returns no tensor");
}

at::Tensor checked_loss(const LossFunction& loss, const at::Tensor& output, const at::Tensor& target) {
  at::Tensor value;
  try {
    value = loss(output, target);
  } catch (const c10::Error& error) {
    explain(error, concat("forward_backward(): the loss cannot take an output of ", form_of(output), " and a target of ", form_of(target)));
  }
  if (!value.defined() || value.numel() != 1)
    fail(ErrorCode::kBadInput, "forward_backward(): the loss is one number, the mean over the rows that it gets, and not ", form_of(value));
  return value;
}

void check_target(const at::Tensor& input, const at::Tensor& target) {
  if (target.defined() && target.dim() > 0 && target.size(0) == input.size(0)) return;
  fail(ErrorCode::kBadInput, "forward_backward(): ", input.size(0), " rows of input (", form_of(input), "), and ",
       !target.defined()   ? "no target"
       : target.dim() == 0 ? "a target that is one number"
                           : concat(target.size(0), " of target (", form_of(target), ")"),
       "; there is a row of the target for each of the input: give session.local() of both");
}

ChangedWeights::ChangedWeights(const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) {
    if (item.value().is_inference()) continue;  // Has no version.
    const int64_t version = item.value()._version();
    weights_.push_back({item.key(), item.value(), item.value().sizes().vec(), version, version});
    // Where a layout gives the parameter other memory, and not other values in its own, LibTorch would see no change.
    item.value().unsafeGetTensorImpl()->bump_version();
  }
}

void ChangedWeights::look_again() {
  for (Weight& weight : weights_) weight.version_after = weight.tensor._version();
}

std::string ChangedWeights::named_in(const std::string& text) const {
  if (!says(text, "has been modified by an inplace operation")) return "";
  for (const Weight& weight : weights_) {
    std::vector<int64_t> sizes = weight.sizes;
    const std::string shape = concat(" ", at::IntArrayRef(sizes), "]");
    std::reverse(sizes.begin(), sizes.end());  // A linear layer keeps its weight transposed.
    const bool fits = says(text, shape) || says(text, concat(" ", at::IntArrayRef(sizes), "]"));
    if (fits && says(text, concat("is at version ", weight.version_after, "; expected version ", weight.version))) return weight.name;
  }
  return "";
}

}  // namespace cohort
