#pragma once
// How much a training step of a GPT-like Transformer keeps on the device that keeps most (transformer_memory.cpp). Torch-free.

#include "cohort/plan/forecast/transformer_step.h"

namespace cohort {

/// What the shapes and the layout do not say. Bytes of an element.
struct MemoryRules {
  double weight_bytes = 2, gradient_bytes = 2;
  double optimizer_bytes = 12;     ///< Adam beside weights of 2 bytes: a copy of 4 and two moments of 4. Beside weights of 4: 8.
  double activation_bytes = 2;     ///< Masks of dropout take a byte.
  bool dropout = true;             ///< In attention and after both halves of a layer.
  bool relu = false;               ///< Keeps its output alone; GELU its input and its output.
  bool sequence_parallel = false;  ///< What tensor parallelism leaves whole is divided by the sequence.
};

struct TransformerMemory {
  double weight_bytes = 0, gradient_bytes = 0, optimizer_bytes = 0, activation_bytes = 0;

  double total() const { return weight_bytes + gradient_bytes + optimizer_bytes + activation_bytes; }
};

/// Of a device of the first stage, which holds the embedding and as many micro-batches as there are stages (1F1B); without pipeline the
/// scores of the vocabulary come in. Without the allocator's overhead. Error(kBadInput) as transformer_step_seconds().
TransformerMemory transformer_memory(const TransformerRun& run, const MemoryRules& rules);

/// Of one layer and one micro-batch, nothing recomputed.
double layer_activation_bytes(const TransformerRun& run, const MemoryRules& rules);
/// Elements of one layer on one device.
double layer_elements(const TransformerShape& shape, int tp);

}  // namespace cohort
