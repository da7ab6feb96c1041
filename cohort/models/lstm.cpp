// Byte LSTM (batch-size study, workload "LSTM": one layer of 2048).
//
//   {n, t} bytes -> embedding {n, t, width} -> LSTM {n, t, hidden} -> linear {n, t, vocabulary}
//
// n samples, t positions (the context). The state starts at zero in each sample. The paper's size is hidden=2048; the defaults are what
// a small CPU trains. Where we differ: bytes instead of word pieces.

#include "cohort/models/parts.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/lstm.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/rnn.h>

#include <tuple>

#include "cohort/models/layers/dropout.h"

namespace cohort {

/// Autocast passes an LSTM to oneDNN on every processor; only a call shows whether oneDNN has the kernel.
static bool runs_in_autocast(at::ScalarType type) {
  const at::NoGradGuard no_gradients;
  const bool was_enabled = at::autocast::is_autocast_enabled(at::kCPU);
  const at::ScalarType type_before = at::autocast::get_autocast_dtype(at::kCPU);
  at::autocast::set_autocast_dtype(at::kCPU, type);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  bool runs = true;
  try {
    const at::Tensor state = at::zeros({1, 1, 1});
    at::lstm(state, {state, state}, {at::zeros({4, 1}), at::zeros({4, 1}), at::zeros({4}), at::zeros({4})}, true, 1, 0.0, true, false,
             true);
  } catch (const std::exception&) {
    runs = false;
  }
  at::autocast::set_autocast_enabled(at::kCPU, was_enabled);
  at::autocast::set_autocast_dtype(at::kCPU, type_before);
  return runs;
}

bool cpu_has_lstm_in(at::ScalarType type) {
  static const bool has_bf16 = runs_in_autocast(at::kBFloat16);
  return type == at::kBFloat16 ? has_bf16 : type != at::kHalf;
}

}  // namespace cohort

namespace cohort::families {

static at::Tensor run_lstm(torch::nn::LSTMImpl& lstm, const at::Tensor& input) {
  if (!input.is_cpu() || !at::autocast::is_autocast_enabled(at::kCPU) || cpu_has_lstm_in(at::autocast::get_autocast_dtype(at::kCPU)))
    return std::get<0>(lstm.forward(input));
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  return std::get<0>(lstm.forward(input.to(at::kFloat)));
}

BuiltModel lstm(const ModelOptions& options) {
  const TextInput text = text_input(options, "lstm");
  const int64_t width = options.integer("width", 128);
  const int64_t hidden = options.integer("hidden", 256);
  const double dropout = options.number("dropout", 0.0, 0.0, 0.999);

  auto graph = std::make_shared<LayerGraph>();
  graph->add("embedding", "embedding", torch::nn::Embedding(text.vocabulary, width));
  const auto module = torch::nn::LSTM(torch::nn::LSTMOptions(width, hidden).batch_first(true)).ptr();
  graph->add_layer("lstm", "lstm", module, [module](const LayerGraph::Inputs& in) { return run_lstm(*module, in[0]); }, {});
  if (dropout > 0.0) graph->add("dropout", "dropout", Dropout(dropout, 0));
  add_linear(*graph, "output", hidden, text.vocabulary);
  return graph;
}

}  // namespace cohort::families
