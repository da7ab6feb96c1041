// The step time of a Transformer from its shapes.
//
// 1. A layer's forward on one device does 24 R h^2 / t + 4 R c h / t operations (R rows = micro-batch x context c, width h, tensor degree
//    t). Products reach their full rate only where the result fills the device: rate x E / (E + E_half) x w / (w + w_half) for a result of
//    E elements and w columns. Other operations move 34 R h / t + 10 R h bytes, and 10 a R c / t more where the scores of a heads are
//    kept in memory (the activations that Korthikanti et al. count, arXiv 2205.05198, section 4.1).
// 2. Divided by t it all-reduces twice R h elements: latency log2 t, and 2 (t - 1) / t of the bytes over the link.
// 3. The host starts kernels while the device computes, and under ZeRO 2 and 3 the exchange of a layer's weights and gradients goes on
//    beside both. So a layer takes the longest of the three: small layers are as slow as the host.
// 4. Backward is twice forward, and once more with recompute, products, moved bytes, launches and all-reduces alike.
// 5. A pipeline of p stages takes one micro-batch through all, and m - 1 more of its slowest stage, the last, with the scores of the
//    vocabulary: 1F1B without overlap of transfers.
// 6. Then come the exchange of gradients (ZeRO 0 and 1), the optimizer on this rank's elements, and what a step costs besides.
//
// Cost: some hundred operations. The structure is that of analytic models such as Calculon's (SC 2023); the constants are fitted to
// measurements (forecast.cpp), and the longest-of-three of step 3 is ours: without it small layers are forecast 40 % too fast.

#include "bench/program/published/forecast/transformer_step.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/plan/profile/analytic_profile.h"

namespace cohort {
namespace {

struct Seconds {
  double forward = 0, backward = 0;
};

/// Whether a group of `ranks` neighbours, `stride` devices apart, leaves its node.
bool leaves_node(const Machine& machine, double ranks, double stride) { return ranks * stride > machine.devices_per_node; }

class StepModel {
 public:
  StepModel(const TransformerRun& run, const Machine& machine)
      : run_(run),
        machine_(machine),
        rows_(static_cast<double>(run.micro_batch * run.shape.context)),
        width_(static_cast<double>(run.shape.width)) {}

  double seconds() const {
    const double layers = std::ceil(static_cast<double>(run_.shape.num_layers) / run_.pp);
    const double stage = layers * layer(), head = head_seconds(), handover = run_.pp > 1 ? handover_seconds() : 0;
    const double micro_batches = static_cast<double>(run_.global_batch) / static_cast<double>(run_.micro_batch * run_.dp);
    const double first = stage * run_.pp + head + handover * (run_.pp - 1);
    return first + (micro_batches - 1) * (stage + head + handover) + gradient_exchange() + update() + machine_.step_seconds;
  }

 private:
  double device_forward() const {
    const double context = static_cast<double>(run_.shape.context), heads = static_cast<double>(run_.shape.num_heads);
    const double columns = width_ / run_.tp, elements = rows_ * columns;
    const double rate =
        machine_.matmul_flops_per_second * share_of_rate(elements, columns, machine_.half_rate_elements, machine_.half_rate_width);
    const double scores = 4 * rows_ * context * width_ / run_.tp;
    const bool fused = run_.shape.fused_attention;
    // Fused attention leaves out the half that a causal mask hides.
    const double attention = fused ? scores / 2 / machine_.attention_flops_per_second : scores / rate;
    const double bytes_of_halves = 34 * rows_ * columns + 10 * rows_ * width_ + (fused ? 0 : 10 * heads * rows_ * context / run_.tp);
    return 24 * rows_ * width_ * width_ / run_.tp / rate + attention +
           run_.element_bytes / 2 * bytes_of_halves / machine_.memory_bytes_per_second;
  }

  double tensor_all_reduce() const {
    if (run_.tp == 1) return 0;
    const double bandwidth = leaves_node(machine_, run_.tp, 1) ? machine_.network_bytes_per_second : machine_.node_bytes_per_second;
    return machine_.node_latency_seconds * std::log2(run_.tp) +
           2.0 * (run_.tp - 1) / run_.tp * run_.element_bytes * rows_ * width_ / bandwidth;
  }

  double data_latency() const {
    if (leaves_node(machine_, run_.dp, run_.tp)) return machine_.network_latency_seconds + machine_.network_rank_seconds * run_.dp;
    return machine_.node_latency_seconds * std::log2(run_.dp);
  }
  double data_bandwidth() const {
    return leaves_node(machine_, run_.dp, run_.tp) ? machine_.network_bytes_per_second : machine_.node_bytes_per_second;
  }
  /// An all-gather or a reduce-scatter over the replicas.
  double half_exchange(double bytes) const {
    return run_.dp == 1 ? 0 : data_latency() + (run_.dp - 1.0) / run_.dp * bytes / data_bandwidth();
  }

  /// Weights that are gathered and gradients that are scattered while a layer computes.
  Seconds exchanged_beside() const {
    if (run_.zero < 2) return {};
    const double elements = 12 * width_ * width_ / run_.tp, gather = half_exchange(run_.element_bytes * elements);
    return {gather, half_exchange(run_.gradient_bytes * elements) + (run_.zero == 3 ? gather : 0)};
  }

  double layer() const {
    const double again = run_.recompute ? 1 : 0;
    const double launch = machine_.launch_seconds + (run_.tp > 1 ? machine_.tensor_launch_seconds : 0);
    const double device = device_forward(), reduce = tensor_all_reduce();
    const Seconds beside = exchanged_beside();
    const double forward = std::max({launch, device + 2 * reduce, beside.forward});
    return forward + std::max({(1 + again) * launch, (2 + again) * device + (2 + 2 * again) * reduce, beside.backward});
  }

  double head_seconds() const {
    return 6 * rows_ * width_ * static_cast<double>(run_.shape.vocabulary) / run_.tp / machine_.head_flops_per_second;
  }
  /// Exchanges of forward and backward.
  double handover_seconds() const { return 2 * run_.element_bytes * rows_ * width_ / machine_.handover_bytes_per_second; }

  double elements_of_rank() const {
    const double layers = static_cast<double>(run_.shape.num_layers) * 12 * width_ * width_ / (run_.tp * run_.pp);
    return layers + static_cast<double>(run_.shape.vocabulary) * width_ / run_.tp;
  }
  double gradient_exchange() const { return run_.zero > 1 ? 0 : 2 * half_exchange(run_.gradient_bytes * elements_of_rank()); }
  double update() const { return machine_.optimizer_seconds_per_element * elements_of_rank() / (run_.zero > 0 ? run_.dp : 1); }

  const TransformerRun& run_;
  const Machine& machine_;
  double rows_, width_;
};

const Machine kH100 = {.matmul_flops_per_second = 600e12,
                       .memory_bytes_per_second = 2.2e12,
                       .attention_flops_per_second = 2.4e14,
                       .head_flops_per_second = 3.6e14};

}  // namespace

const std::array<MachineConstant, 16>& machine_constants() {
  static constexpr std::array<MachineConstant, 16> kConstants = {{
      {"matmul_flops_per_second", &Machine::matmul_flops_per_second},
      {"half_rate_elements", &Machine::half_rate_elements},
      {"half_rate_width", &Machine::half_rate_width},
      {"memory_bytes_per_second", &Machine::memory_bytes_per_second},
      {"attention_flops_per_second", &Machine::attention_flops_per_second},
      {"head_flops_per_second", &Machine::head_flops_per_second},
      {"launch_seconds", &Machine::launch_seconds},
      {"tensor_launch_seconds", &Machine::tensor_launch_seconds},
      {"node_latency_seconds", &Machine::node_latency_seconds},
      {"node_bytes_per_second", &Machine::node_bytes_per_second},
      {"network_latency_seconds", &Machine::network_latency_seconds},
      {"network_rank_seconds", &Machine::network_rank_seconds},
      {"network_bytes_per_second", &Machine::network_bytes_per_second},
      {"handover_bytes_per_second", &Machine::handover_bytes_per_second},
      {"optimizer_seconds_per_element", &Machine::optimizer_seconds_per_element},
      {"step_seconds", &Machine::step_seconds},
  }};
  return kConstants;
}

Machine known_machine(const std::string& name) {
  static const std::map<std::string, Machine> kMachines = {
      {"a100", {}},
      {"a100-fp32", {.matmul_flops_per_second = 80e12}},
      {"gh200-fp32", {.matmul_flops_per_second = 250e12, .memory_bytes_per_second = 3e12}},
      {"v100-fp32", {.matmul_flops_per_second = 13e12, .memory_bytes_per_second = 8e11}},
      {"rtx-2080-fp32", {.matmul_flops_per_second = 10e12, .memory_bytes_per_second = 5e11, .node_bytes_per_second = 8e9}},
      {"titan-rtx-fp32", {.matmul_flops_per_second = 13e12, .memory_bytes_per_second = 5.5e11, .node_bytes_per_second = 8e9}},
      // Pairs of devices have their own link.
      {"rtx-3090-fp32",
       {.matmul_flops_per_second = 28e12,
        .memory_bytes_per_second = 8e11,
        .node_bytes_per_second = 4e10,
        .network_bytes_per_second = 5e9,
        .devices_per_node = 2}},
      {"h100", kH100},
  };
  const auto at = kMachines.find(name);
  if (at != kMachines.end()) return at->second;
  std::vector<std::string> names;
  for (const auto& [known, machine] : kMachines) names.push_back(known);
  fail(ErrorCode::kBadInput, "no machine '", name, "'", did_you_mean(name, names), "; there are: ", join(names, " "));
}

double transformer_step_seconds(const TransformerRun& run, const Machine& machine) {
  const TransformerShape& shape = run.shape;
  if (std::min({shape.num_layers, shape.width, shape.num_heads, shape.context, shape.vocabulary}) < 1)
    fail(ErrorCode::kBadInput, "a Transformer needs layers, width, heads, context and vocabulary from 1 up");
  if (std::min({run.tp, run.dp, run.pp}) < 1 || run.zero < 0 || run.zero > 3)
    fail(ErrorCode::kBadInput, "tp=", run.tp, ", dp=", run.dp, ", pp=", run.pp, ", zero=", run.zero, ": invalid layout");
  if (run.micro_batch < 1 || run.global_batch < run.micro_batch * run.dp)
    fail(ErrorCode::kBadInput, "a global batch of ", run.global_batch, " is less than a micro-batch of ", run.micro_batch, " for each of ",
         run.dp, " replicas");
  return StepModel(run, machine).seconds();
}

// The memory of a layer from its shapes.
//
//  1. A layer of width h has 12 h^2 + 13 h elements; tensor parallelism by t divides the products' weights and the biases of their first
//     halves, not the norms and the biases after the exchanges: 12 h^2 / t + 7 h / t + 6 h.
//  2. A layer keeps, in elements of R x h (R rows: micro-batch x context c): the inputs of both norms and of both halves' products, 4,
//     whole; queries, keys, values and attention's output, 4, the product's wide output and GELU's, 8, and with heads a the probabilities,
//     a c / h, divided by t. Dropout keeps its output of the probabilities and masks of a byte. Fused attention keeps no probabilities.
//
// Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (arXiv 2205.05198), whose count is this one
// with fp16, GELU and dropout: R h (10 + 24 / t + 5 a c / (h t)) bytes.

double layer_elements(const TransformerShape& shape, int tp) {
  const auto width = static_cast<double>(shape.width);
  return (12 * width * width + 7 * width) / tp + 6 * width;
}

double layer_activation_bytes(const TransformerRun& run, const ActivationRules& rules) {
  const double width = static_cast<double>(run.shape.width), context = static_cast<double>(run.shape.context);
  const double rows = static_cast<double>(run.micro_batch) * context, heads = static_cast<double>(run.shape.num_heads);
  const double whole = 4 * rules.element_bytes + (rules.dropout ? 2 : 0);
  const double probabilities = run.shape.fused_attention ? 0 : heads * context / width;
  const double divided = (rules.relu ? 8 : 12) * rules.element_bytes +
                         probabilities * (rules.element_bytes * (rules.dropout ? 2 : 1) + (rules.dropout ? 1 : 0));
  return rows * width * (whole + divided / run.tp);
}

}  // namespace cohort
