#include "cohort/models/graph/model_errors.h"

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <stdexcept>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/models/graph/layer_graph.h"

namespace cohort {
namespace {

/// ", with weight (4, 64) float32 and bias (4) float32"; only the first parameters.
std::string describe_weights(const LayerGraph::Layer& layer) {
  constexpr size_t kMost = 2;
  if (!layer.module) return "";
  std::vector<std::string> parts;
  for (const auto& item : layer.module->named_parameters())
    if (parts.size() < kMost) parts.push_back(item.key() + " " + describe_tensor(item.value()));
  return parts.empty() ? "" : ", with " + join(parts, " and ") + ",";
}

/// "the output of layer 'hidden', (20, 64) float32"
std::string describe_inputs(const LayerGraph& model, const LayerGraph::Layer& layer, const std::vector<at::Tensor>& inputs) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < std::min(inputs.size(), layer.inputs.size()); ++i) {
    const int from = layer.inputs[i];
    const std::string source = from == LayerGraph::kInput
                                   ? "the model's input"
                                   : concat("the output of layer '", model.layers()[static_cast<size_t>(from)].name, "'");
    parts.push_back(concat(source, ", ", describe_tensor(inputs[i])));
  }
  return join(parts, ", and ");
}

std::string advice(const LayerGraph::Layer& layer, const std::vector<at::Tensor>& inputs) {
  if (std::find(layer.inputs.begin(), layer.inputs.end(), LayerGraph::kInput) == layer.inputs.end())
    return "make the sizes and types of these layers fit";
  for (const at::Tensor& input : inputs)
    if (input.defined() && !input.is_floating_point())
      return "integers, such as the bytes of text, go into an embedding or through .to(torch::kFloat) first; or give it data of the kind "
             "that "
             "it is made for";
  return "make it for samples of this shape and type (COHORT_MODEL: options.data()), or give it data of the kind that it is made for";
}

}  // namespace

bool is_mismatch_error(const std::exception& error) {
  if (dynamic_cast<const std::out_of_range*>(&error)) return true;
  if (!dynamic_cast<const c10::Error*>(&error)) return false;
  if (dynamic_cast<const c10::DistError*>(&error) || dynamic_cast<const c10::OutOfMemoryError*>(&error) ||
      dynamic_cast<const c10::AcceleratorError*>(&error))
    return false;
  // A failed allocation, or a ZeRO weight that is on another rank, whose message says what to do.
  const std::string text = error.what();
  return text.find("DefaultCPUAllocator") == std::string::npos && text.find("gather_weights()") == std::string::npos;
}

bool is_user_exception(const std::exception& error) {
  if (dynamic_cast<const Error*>(&error)) return false;
  return dynamic_cast<const std::runtime_error*>(&error) || dynamic_cast<const std::logic_error*>(&error);
}

std::string quote(const std::exception& error) {
  const auto* const of_libtorch = dynamic_cast<const c10::Error*>(&error);
  std::string text = of_libtorch ? of_libtorch->what_without_backtrace() : error.what();
  text = first_line(text);
  text = text.substr(0, text.find(" Hint: "));  // A hint about Python options.
  while (!text.empty() && (text.back() == '.' || text.back() == ' ' || text.back() == ':')) text.pop_back();
  return (of_libtorch ? "LibTorch says: " : "its error is: ") + text;
}

std::string inplace_advice(const std::exception& error) {
  if (std::string(error.what()).find("modified by an inplace operation") == std::string::npos) return "";
  return "it changes in place what backward still needs: use relu() and not relu_(), x = x + y and not x += y";
}

std::string describe_sizes(at::IntArrayRef sizes) {
  std::string text;
  for (const int64_t size : sizes) text += concat(text.empty() ? "" : ", ", size);
  return text;
}

std::string describe_tensor(const at::Tensor& tensor) {
  if (!tensor.defined()) return "no tensor";
  return concat("(", describe_sizes(tensor.sizes()), ") ", c10::getDtypeNames(tensor.scalar_type()).first);
}

void fail_in_layer(const LayerGraph& model, size_t layer, const std::vector<at::Tensor>& inputs, const std::exception& error) {
  const LayerGraph::Layer& one = model.layers().at(layer);
  const std::string in_place = inplace_advice(error);
  fail(ErrorCode::kBadInput, model.title(), ": layer '", one.name, "' (", one.kind, ")", describe_weights(one), " failed on ",
       describe_inputs(model, one, inputs), "; ", in_place.empty() ? advice(one, inputs) : in_place, " (", quote(error), ")");
}

}  // namespace cohort
