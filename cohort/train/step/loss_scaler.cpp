// Dynamic loss scaling (Micikevicius et al. 2018, section 3.2) with the constants and rules of PyTorch's GradScaler: multiply by 0.5 after
// a step whose gradients overflowed, by 2 after 2000 steps in a row without. Difference: 30 overflows in a row end the run with an error,
// where GradScaler goes on to a scale of 0.
#include "cohort/train/step/loss_scaler.h"

#include <ATen/ops/isfinite.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/models/graph/layer_graph.h"

namespace cohort {

static bool is_usable(double scale) { return scale > 0 && std::isfinite(static_cast<float>(scale)) && std::isfinite(1 / scale); }

LossScaler::LossScaler(const LossScalerOptions& options) : options_(options), scale_(options.initial) {
  if (!is_usable(options.initial) || !(options.growth > 1) || !(options.backoff > 0 && options.backoff < 1) ||
      options.growth_interval < 1) {
    fail(ErrorCode::kBadInput, "loss scale: initial ", options.initial, " must be positive and finite, growth ", options.growth,
         " above 1, backoff ", options.backoff, " between 0 and 1, and the interval ", options.growth_interval, " at least 1");
  }
}

LossScaler LossScaler::none() { return LossScaler({.initial = 1, .dynamic = false}); }

void LossScaler::update(bool skipped) {
  if (!skipped) {
    skipped_in_a_row_ = 0;
    if (!options_.dynamic || ++clean_steps_ < options_.growth_interval) return;
    clean_steps_ = 0;
    if (is_usable(scale_ * options_.growth)) scale_ *= options_.growth;
    return;
  }
  clean_steps_ = 0;
  ++skipped_steps_;
  if (++skipped_in_a_row_ >= kMaxSkippedInARow) {
    fail(ErrorCode::kFailed, "gradients were infinite or NaN in ", skipped_in_a_row_, " steps in a row, the last with a loss scale of ",
         scale_, options_.dynamic ? ": the scale is not the reason, the model itself makes them" : ", which is fixed",
         name_settings("; use a smaller --lr, --clip-norm or --precision bf16, and look for a division by zero or a logarithm of zero"),
         options_.dynamic ? "" : ", or let the scale be dynamic");
  }
  if (options_.dynamic && is_usable(scale_ * options_.backoff)) scale_ *= options_.backoff;
}

Json LossScaler::state() const {
  return Json{{"scale", scale_}, {"clean_steps", clean_steps_}, {"skipped_in_a_row", skipped_in_a_row_}, {"skipped_steps", skipped_steps_}};
}

void LossScaler::load(const Json& state) {
  const auto number = [&](const char* name) {
    if (!state.is_object() || !state.contains(name) || !state[name].is_number())
      fail(ErrorCode::kBadInput, "loss scale: the saved state has no number '", name, "'");
    return state[name].get<double>();
  };
  const auto count = [&](const char* name) {
    const double value = number(name);
    if (!(value >= 0 && value < 9e15)) fail(ErrorCode::kBadInput, "loss scale: the saved state has ", name, " = ", value);
    return static_cast<int64_t>(value);
  };
  const double scale = number("scale");
  if (!is_usable(scale)) fail(ErrorCode::kBadInput, "loss scale: the saved state has scale = ", scale);
  const int64_t clean_steps = count("clean_steps"), in_a_row = count("skipped_in_a_row"), skipped = count("skipped_steps");
  if (options_.dynamic) scale_ = scale;
  clean_steps_ = clean_steps, skipped_in_a_row_ = in_a_row, skipped_steps_ = skipped;
}

namespace {

int64_t num_not_finite(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_floating_point()) return 0;
  return tensor.numel() - at::isfinite(tensor).sum().item<int64_t>();
}

std::string shape_of(const at::Tensor& tensor) {
  std::vector<std::string> sizes;
  for (const int64_t size : tensor.sizes()) sizes.push_back(std::to_string(size));
  return "(" + join(sizes, ", ") + ")";
}

std::string sentence(const std::string& what, const at::Tensor& tensor) {
  return concat("; the first tensor that is not finite: ", what, ", ", shape_of(tensor), ", ", with_commas(num_not_finite(tensor)), " of ",
                with_commas(tensor.numel()), " elements");
}

/// The largest magnitude in tensors that are finite.
double largest_of(const std::vector<at::Tensor>& tensors) {
  double largest = 0;
  for (const at::Tensor& tensor : tensors)
    if (tensor.is_floating_point() && tensor.numel() > 0) largest = std::max(largest, tensor.abs().max().item<double>());
  return largest;
}

}  // namespace

std::string first_not_finite(const LayerGraph& model, const at::Tensor& input) {
  at::NoGradGuard no_grad;
  for (const auto& named : model.named_parameters())
    if (num_not_finite(named.value()) > 0) return sentence("weight '" + named.key() + "'", named.value()) + ", since an update before";
  for (const auto& named : model.named_buffers())
    if (num_not_finite(named.value()) > 0) return sentence("'" + named.key() + "'", named.value());
  if (!input.defined()) return "; all weights of this rank are finite";
  if (num_not_finite(input) > 0) return sentence("the input, so the data hold it", input);
  try {
    std::vector<at::Tensor> outputs;
    const std::vector<LayerGraph::Layer>& layers = model.layers();
    for (size_t i = 0; i < layers.size(); ++i) {
      LayerGraph::Inputs inputs;
      for (const int from : layers[i].inputs) inputs.push_back(from == LayerGraph::kInput ? input : outputs[static_cast<size_t>(from)]);
      outputs.push_back(model.run_layer(i, inputs));
      if (num_not_finite(outputs.back()) > 0)
        return concat(sentence(concat("the output of layer '", layers[i].name, "' (", layers[i].kind, ")"), outputs.back()),
                      "; the largest number that it takes is ", largest_of(inputs), ", and of its weights ",
                      layers[i].module ? concat(largest_of(layers[i].module->parameters())) : "none");
    }
  } catch (const std::exception&) {
    return "; all weights are finite";  // The error to report is that of the loss, not that of this second run.
  }
  return "; all weights and all outputs of layers on this rank's samples are finite, so it is the loss itself, or another rank's samples";
}

void fail_not_finite(const LayerGraph& model, const std::string& which, double loss, int64_t step, double rate, const std::string& others,
                     const std::string& where) {
  // The sign of a NaN says nothing, and "-nan" looks as if it did.
  fail(ErrorCode::kFailed, which, " is not finite (", std::isnan(loss) ? std::string("nan") : concat(loss), ") at step ", step + 1,
       name_settings("; use a smaller --lr (now "), rate, others,
       model.loss_name() == "own"
           ? concat("; or the loss: ", model.title(), " has its own, which must be the mean over the samples, not their sum")
           : "",
       where, ". What the last checkpoint holds, where there is one, is untouched");
}

}  // namespace cohort
