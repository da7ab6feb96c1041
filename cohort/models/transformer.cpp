// Byte Transformer, decoder only (batch-size study, workload "Transformer"; Vaswani et al. 2017).
//
//   {n, t} bytes -> embedding {n, t, w} -> block x layers {n, t, w} -> layer norm -> linear {n, t, vocabulary}
//
// n samples, t positions (the context), w width. Blocks: transformer_block.cpp. The paper's base model has layers=6 width=512 heads=8
// ff=2048; the defaults are what a small CPU trains in minutes. Where we differ: bytes instead of word pieces, learned positions instead of
// sine waves, normalisation before each part instead of after, the attention weights have no dropout. tied=1: the output layer uses the
// byte table as its weight; both tables then start at 0.02 as GPT-2 has it, since the default of 1 would make the first logits as large as
// sqrt(width).

#include <ATen/ops/linear.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "cohort/models/layers/dropout.h"
#include "cohort/models/layers/transformer_block.h"
#include "cohort/models/parts.h"

namespace cohort::families {
namespace {

/// The output layer with another module's parameter as its weight, registered here too so that the layer alone shows it.
class TiedLinear : public torch::nn::Module {
 public:
  explicit TiedLinear(const at::Tensor& shared) : torch::nn::Module("TiedLinear") { weight = register_parameter("weight", shared); }
  at::Tensor weight;
};

void add_tied_output(LayerGraph& graph, const ByteEmbedding& embedding) {
  torch::nn::init::normal_(embedding->token->weight, 0.0, 0.02);
  torch::nn::init::normal_(embedding->position->weight, 0.0, 0.02);
  auto output = std::make_shared<TiedLinear>(embedding->token->weight);
  graph.add_layer("output", "linear", output, [output](const LayerGraph::Inputs& in) { return at::linear(in[0], output->weight); }, {});
}

}  // namespace

BuiltModel transformer(const ModelOptions& options) {
  const TextInput text = text_input(options, "transformer");
  const int64_t num_layers = options.integer("layers", 2, 1, 1000);
  BlockOptions block;
  block.width = options.integer("width", 64, 1, 1 << 20);
  block.heads = options.integer("heads", 2);
  block.ff = options.integer("ff", 4 * block.width);
  block.dropout = options.number("dropout", 0.0, 0.0, 0.999);
  const bool tied = options.integer("tied", 0, 0, 1) == 1;

  auto graph = std::make_shared<LayerGraph>();
  ByteEmbedding embedding(text.vocabulary, block.width, text.context);
  graph->add("embedding", "embedding", embedding);
  if (block.dropout > 0.0) graph->add("dropout", "dropout", Dropout(block.dropout, block.first_dropout_id++));
  for (int64_t i = 1; i <= num_layers; ++i, block.first_dropout_id += 2)
    graph->add("block" + std::to_string(i), "transformerblock", TransformerBlock(block));
  graph->add("norm", "layernorm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({block.width})));
  if (tied) add_tied_output(*graph, embedding);
  else add_linear(*graph, "output", block.width, text.vocabulary, /*bias=*/false);
  return graph;
}

}  // namespace cohort::families
