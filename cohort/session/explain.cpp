#include "cohort/session/explain.h"

#include <algorithm>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/models/graph/model_errors.h"

namespace cohort {
namespace {

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

void explain(const std::exception& error, const std::string& what) {
  fail(is_mismatch_error(error) ? ErrorCode::kBadInput : ErrorCode::kFailed, what, " (", quote(error), ")");
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
      explain(error, concat("layer '", i < names.size() ? names[i] : std::to_string(i), "' (", layer.ptr()->name(), ") failed on ",
                            describe_tensor(given)));
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
    explain(error, concat("forward_backward(): the loss failed on an output of ", describe_tensor(output), " and a target of ",
                          describe_tensor(target)));
  }
  if (!value.defined() || value.numel() != 1 || !value.is_floating_point())
    fail(ErrorCode::kBadInput, "forward_backward(): the loss is one floating-point number, the mean over the rows that it gets, and not ",
         describe_tensor(value));
  if (!value.requires_grad())
    fail(ErrorCode::kBadInput, "forward_backward(): the ",
         output.requires_grad() ? "loss has no gradient, though the output has one" : "model's output has no gradient, nor has the loss",
         ": there is no detach(), item(), argmax() or NoGradGuard on the way from the weights, and no tensor made anew of numbers");
  return value;
}

void check_target(const at::Tensor& input, const at::Tensor& target) {
  if (target.defined() && target.dim() > 0 && target.size(0) == input.size(0)) return;
  fail(ErrorCode::kBadInput, "forward_backward(): ", input.size(0), " rows of input (", describe_tensor(input), "), and ",
       !target.defined()   ? "no target"
       : target.dim() == 0 ? "a target that is one number"
                           : concat(target.size(0), " of target (", describe_tensor(target), ")"),
       target.defined() ? "; there is a row of the target for each of the input: give session.local() of both"
                        : "; give the rows of session.local(target), or those of the input again where the loss needs none");
}

ChangedWeights::ChangedWeights(const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) {
    if (item.value().is_inference()) continue;  // Has no version.
    const int64_t version = item.value()._version();
    weights_.push_back({item.key(), item.value(), item.value().sizes().vec(), version, version});
    // LibTorch does not see a change if a layout only gives the parameter other memory.
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
