#pragma once
// How long a training step of a GPT-like Transformer takes on a cluster, and what one of its layers keeps, from shapes alone
// (transformer_step.cpp). No allocation; microseconds a call.

#include <array>
#include <cstdint>
#include <string>

namespace cohort {

struct TransformerShape {
  int64_t num_layers = 0, width = 0, num_heads = 0, context = 0, vocabulary = 0;
  bool fused_attention = false;  ///< Scores never reach the memory.
};

/// One training of it: shapes, layout, batch. Batches are in sequences.
struct TransformerRun {
  TransformerShape shape;
  int64_t micro_batch = 1, global_batch = 1;  ///< Samples of one replica; of all replicas.
  int tp = 1, dp = 1, pp = 1;                 ///< Degrees; their product is the number of devices. Pipelines run 1F1B.
  int zero = 0;                               ///< 0, 1: gradients are exchanged after the last backward. 2, 3: layer by layer.
  bool recompute = false;                     ///< All layers.
  double gradient_bytes = 2;                  ///< Bytes of an exchanged gradient.
  double element_bytes = 2;                   ///< Bytes of a weight or an activation.

  int num_devices() const { return tp * dp * pp; }
};

/// Constants of a kind of device and of its links, all positive; fit_machine() determines them.
struct Machine {
  double matmul_flops_per_second = 250e12;   ///< Rate of products that fill the device.
  double half_rate_elements = 300e3;         ///< Elements of a product's result at which it has half of that rate,
  double half_rate_width = 50;               ///< and columns of it on one device, likewise.
  double memory_bytes_per_second = 1.3e12;   ///< For operations that are not matrix products.
  double attention_flops_per_second = 1e14;  ///< Rate of fused attention.
  double head_flops_per_second = 1.5e14;     ///< Rate of the scores of the vocabulary, forward and backward.
  double launch_seconds = 1e-3;              ///< Time to start the kernels of a layer's forward,
  double tensor_launch_seconds = 1e-4;       ///< and more of it where the layer is divided.
  double node_latency_seconds = 3e-5;        ///< Latency of an exchange inside a node, for each doubling of its ranks,
  double node_bytes_per_second = 1.5e11;     ///< and its bandwidth.
  double network_latency_seconds = 3e-5;     ///< Latency of an exchange between nodes,
  double network_rank_seconds = 1e-6;        ///< for each of its ranks,
  double network_bytes_per_second = 9e10;    ///< and its bandwidth.
  double handover_bytes_per_second = 2e10;   ///< Bandwidth between the stages of a pipeline.
  double optimizer_seconds_per_element = 2e-11;
  double step_seconds = 2e-3;  ///< The rest of a step.

  int devices_per_node = 8;
};

struct MachineConstant {
  const char* name;
  double Machine::* value;
};
/// All of them but the size of a node, for fits and for files.
const std::array<MachineConstant, 16>& machine_constants();

/// "a100", "h100"; with elements of 4 bytes "a100-fp32", "gh200-fp32", "v100-fp32", "rtx-2080-fp32", "titan-rtx-fp32", "rtx-3090-fp32":
/// starting values from data sheets and published measurements. Error(kBadInput) for another name.
Machine known_machine(const std::string& name);

/// Seconds of a step. Error(kBadInput) for an invalid degree, batch or shape.
double transformer_step_seconds(const TransformerRun& run, const Machine& machine);

/// Properties of a layer that change its memory and do not follow from its shapes.
struct ActivationRules {
  double element_bytes = 2;  ///< Masks of dropout take a byte.
  bool dropout = true;       ///< Dropout in attention and after both halves of a layer.
  bool relu = false;         ///< Keeps its output alone; GELU its input and its output.
};

/// Bytes of the activations of one layer and one micro-batch, nothing recomputed.
double layer_activation_bytes(const TransformerRun& run, const ActivationRules& rules);
/// Elements of one layer on one device.
double layer_elements(const TransformerShape& shape, int tp);

}  // namespace cohort
