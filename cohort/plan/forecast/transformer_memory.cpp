// The memory of a Transformer's training step from its shapes.
//
//  1. A layer of width h has 12 h^2 + 13 h elements; tensor parallelism by t divides the products' weights and the biases of their first
//     halves, not the norms and the biases after the exchanges: 12 h^2 / t + 7 h / t + 6 h.
//  2. A layer keeps, in elements of R x h (R rows: micro-batch x context c): the inputs of both norms and of both halves' products, 4,
//     whole; queries, keys, values and attention's output, 4, the product's wide output and GELU's, 8, and with heads a the probabilities,
//     a c / h, divided by t. Dropout keeps its output of the probabilities and masks of a byte.
//  3. Fused attention keeps no probabilities. A layer that is recomputed keeps its input alone, and one layer at a time is whole.
//  4. The first of p stages keeps min(p, m) micro-batches. ZeRO 1, 2 and 3 divide optimizer, gradients and weights by the replicas; under
//     ZeRO 3 two layers' weights are whole at a time.
//
// Cost: some hundred operations. Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (arXiv
// 2205.05198), whose count is this one with fp16, GELU and dropout: R h (10 + 24 / t + 5 a c / (h t)) bytes.

#include "cohort/plan/forecast/transformer_memory.h"

#include <algorithm>
#include <cmath>

namespace cohort {

double layer_elements(const TransformerShape& shape, int tp) {
  const auto width = static_cast<double>(shape.width);
  return (12 * width * width + 7 * width) / tp + 6 * width;
}

double layer_activation_bytes(const TransformerRun& run, const MemoryRules& rules) {
  const double width = static_cast<double>(run.shape.width), context = static_cast<double>(run.shape.context);
  const double rows = static_cast<double>(run.micro_batch) * context, heads = static_cast<double>(run.shape.num_heads);
  const double whole = 4 * rules.activation_bytes + (rules.dropout ? 2 : 0);
  const double probabilities = run.shape.fused_attention ? 0 : heads * context / width;
  const double divided = (rules.relu ? 8 : 12) * rules.activation_bytes +
                         probabilities * (rules.activation_bytes * (rules.dropout ? 2 : 1) + (rules.dropout ? 1 : 0));
  return rows * width * (whole / (rules.sequence_parallel ? run.tp : 1) + divided / run.tp);
}

TransformerMemory transformer_memory(const TransformerRun& run, const MemoryRules& rules) {
  transformer_step_seconds(run, {});  // Refuses what is no run.
  const double width = static_cast<double>(run.shape.width), vocabulary = static_cast<double>(run.shape.vocabulary);
  const double rows = static_cast<double>(run.micro_batch * run.shape.context);
  const double layers = std::ceil(static_cast<double>(run.shape.num_layers) / run.pp);
  const double elements = layers * layer_elements(run.shape, run.tp) + vocabulary * width / run.tp;
  const auto share = [&](int zero) { return run.zero >= zero ? static_cast<double>(run.dp) : 1.0; };

  TransformerMemory memory;
  memory.weight_bytes = rules.weight_bytes * elements / share(3);
  if (run.zero == 3 && run.dp > 1) memory.weight_bytes += rules.weight_bytes * 2 * layer_elements(run.shape, run.tp);
  memory.gradient_bytes = rules.gradient_bytes * elements / share(2);
  memory.optimizer_bytes = rules.optimizer_bytes * elements / share(1);

  const double micro_batches = std::ceil(static_cast<double>(run.global_batch) / static_cast<double>(run.micro_batch * run.dp));
  const double held = std::min<double>(run.pp, micro_batches), layer = layer_activation_bytes(run, rules);
  const double input = rules.activation_bytes * rows * width / (rules.sequence_parallel ? run.tp : 1);
  memory.activation_bytes = run.recompute ? held * layers * input + layer : held * layers * layer;
  // Scores and their gradients, in fp32.
  if (run.pp == 1) memory.activation_bytes += 2 * 4 * rows * vocabulary / run.tp;
  return memory;
}

}  // namespace cohort
