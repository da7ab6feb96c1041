// A pre-norm Transformer block divided between P ranks.
//
//   h = enter(norm1(x));  x = x + dropout(leave(out_r(attention_r(qkv_r(h)))) + out.bias)
//   h = enter(norm2(x));  x = x + dropout(leave(down_r(GELU(up_r(h)))) + down.bias)
//
// Steps, on rank r: qkv_r has the rows of its H / P heads in each of the q, k and v blocks, so attention needs no exchange; up_r has
// ff / P hidden units; out_r and down_r have the columns that meet those, so what they give are terms of a sum over ranks, to which the
// bias is added once. n samples, t positions, w width:
//   replicated:         enter = copy_to_ranks {n, t, w}; leave = sum_over_ranks
//   sequence parallel:  x is {n, t / P, w}; enter = gather_with_sum -> {n, t, w}; leave = sum_and_slice -> {n, t / P, w}. The norms and
//                       the two biases see a part of the positions, so their gradients are terms too: the six vectors go through one
//                       copy_to_ranks of {6, w}.
// Cost, with A = n t w elements of the activation's type (half under autocast: the cast stands in front of the exchange): replicated, two
// all-reduces of A forward and two backward; sequence parallel, two all-gathers and two reduce-scatters of A each way, which is the same
// bytes, and one all-reduce of 6 w backward. Multiplications: those of the whole block / P.
//
// Dropout masks are functions of the element's place in the whole tensor (models/layers/dropout.h): ranks with replicated activations draw
// the same, a rank with some positions takes its slice. Source: Shoeybi et al. 2019, "Megatron-LM", section 3; Korthikanti et al. 2022,
// "Reducing activation recomputation", section 4.2. Where we differ: the latter gathers the inputs of qkv and up again in backward, here
// they are kept (recompute the block to free them); the gradients of norms and biases travel with backward, not after it.

#include "cohort/tensor/sharded_block.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/stack.h>

#include <vector>

#include "cohort/base/fail.h"
#include "cohort/models/graph/step_context.h"
#include "cohort/models/layers/dropout.h"
#include "cohort/tensor/collective_ops.h"

namespace cohort {
namespace {

/// A layer's two parameters, used by forward.
class Weights : public torch::nn::Module {
 public:
  explicit Weights(const std::string& kind) : torch::nn::Module(kind) {}
  void set(const std::string& name, const at::Tensor& value, bool requires_grad) {
    (name == "weight" ? weight : bias) = register_parameter(name, value, requires_grad);
  }
  at::Tensor weight, bias;
};

/// Casts to the type that a linear layer will use, which reduces the bytes of an exchange before it.
at::Tensor in_activation_type(const at::Tensor& input) {
  const c10::DeviceType device = input.device().type();
  if (!at::autocast::is_autocast_enabled(device) || input.scalar_type() == at::kDouble) return input;
  return input.to(at::autocast::get_autocast_dtype(device));
}

}  // namespace

struct ShardedTransformerBlock::State {
  Group group;
  bool sequence_parallel;
  BlockOptions options;  ///< Of the undivided block.
  double epsilon1, epsilon2;
  std::shared_ptr<Weights> norm1, norm2, qkv, out, up, down;

  /// Replicated parameters as forward uses them: with complete gradients.
  struct WholeVectors {
    at::Tensor norm1_weight, norm1_bias, norm2_weight, norm2_bias, out_bias, down_bias;
  };
  WholeVectors whole_vectors() const {
    const WholeVectors leaves{norm1->weight, norm1->bias, norm2->weight, norm2->bias, out->bias, down->bias};
    if (!sequence_parallel || group.size() == 1) return leaves;
    const auto vectors =
        copy_to_ranks(
            at::stack({leaves.norm1_weight, leaves.norm1_bias, leaves.norm2_weight, leaves.norm2_bias, leaves.out_bias, leaves.down_bias}),
            group)
            .unbind(0);
    return {vectors[0], vectors[1], vectors[2], vectors[3], vectors[4], vectors[5]};
  }

  at::Tensor norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon) const {
    return at::layer_norm(x, {options.width}, weight, bias, epsilon);
  }
  at::Tensor column_linear(const at::Tensor& x, const Weights& layer) const {
    const at::Tensor input = in_activation_type(x);
    return at::linear(sequence_parallel ? gather_with_sum(input, 1, group) : copy_to_ranks(input, group), layer.weight, layer.bias);
  }
  at::Tensor row_linear(const at::Tensor& x, const Weights& layer, const at::Tensor& bias) const {
    const at::Tensor term = at::linear(x, layer.weight);
    const at::Tensor sum = sequence_parallel ? sum_and_slice(term, 1, group) : sum_over_ranks(term, group);
    return sum + bias.to(sum.scalar_type());
  }

  /// The block's dropout number 0 or 1.
  at::Tensor dropout(const at::Tensor& x, int64_t number, bool is_training) const {
    if (options.dropout == 0.0 || !is_training) return x;
    const StepContext* context = current_step_context();
    if (context == nullptr) {
      fail(ErrorCode::kBadInput, "dropout in a Transformer block that is divided between ", group.size(),
           " ranks needs a StepContextScope around forward and backward (rank ", group.rank(),
           "): without one the ranks' masks would differ");
    }
    std::vector<int64_t> whole_shape = x.sizes().vec();
    if (sequence_parallel) whole_shape[1] *= group.size();
    const at::Tensor like = x.detach().new_empty({1}).expand(whole_shape);  // shape without memory
    at::Tensor factors = dropout_factors(like, options.dropout, options.first_dropout_id + number, *context);
    if (sequence_parallel) factors = factors.narrow(1, group.rank() * x.size(1), x.size(1));
    return x * factors.to(x.options());
  }
};

at::Tensor shard_values(const at::Tensor& whole, const ParameterShard& shard) {
  std::vector<at::Tensor> ranges;
  for (const SliceRange& range : shard.ranges) ranges.push_back(whole.detach().narrow(shard.dim, range.whole, range.count));
  return at::cat(ranges, shard.dim).contiguous();
}

std::string why_not_divided(const TransformerBlockImpl& block, int num_ranks) {
  const int64_t heads = block.options().heads, ff = block.options().ff;
  if (num_ranks < 1) return concat("there are no ", num_ranks, " ranks");
  if (heads % num_ranks != 0) return concat("its ", heads, " heads do not divide by ", num_ranks, " ranks");
  if (ff % num_ranks != 0) return concat("its ", ff, " hidden units do not divide by ", num_ranks, " ranks");
  return {};
}

bool is_divided_in_block(const std::string& name) {
  return name.starts_with("qkv.") || name.starts_with("up.") || name == "out.weight" || name == "down.weight";
}

ShardedTransformerBlock::ShardedTransformerBlock(const TransformerBlockImpl& whole, const Group& group, bool sequence_parallel,
                                                 const std::string& prefix, std::map<std::string, ParameterShard>& shards)
    : torch::nn::Module("ShardedTransformerBlock") {
  if (const std::string reason = why_not_divided(whole, group.size()); !reason.empty()) {
    fail(ErrorCode::kBadInput, "the Transformer block ", prefix, " cannot be divided: ", reason);
  }
  struct Division {
    int dim;  ///< Of the weight; its bias is divided with its rows (0). kWhole: neither.
    int num_blocks = 1;
    int64_t unit = 1;
  };
  constexpr int kWhole = -1;
  const auto add = [&](const std::string& name, const torch::nn::Module& from, const Division& division) {
    auto layer = std::make_shared<Weights>("Sharded" + from.name());
    for (const auto& item : from.named_parameters()) {
      const at::Tensor& value = item.value();
      const std::string full_name = prefix + name + "." + item.key();
      if (division.dim == kWhole || division.dim >= value.dim()) {
        layer->set(item.key(), value.detach().clone(), value.requires_grad());
        continue;
      }
      const ParameterShard shard =
          even_shard(value.sizes().vec(), division.dim, group.size(), group.rank(), full_name, division.num_blocks, division.unit);
      layer->set(item.key(), shard_values(value, shard), value.requires_grad());
      if (group.size() > 1) shards[full_name] = shard;
    }
    return register_module(name, layer);
  };
  const BlockOptions& options = whole.options();
  const int64_t head_width = options.width / options.heads;
  state_ = std::make_shared<State>(State{group, sequence_parallel, options, whole.norm1->options.eps(), whole.norm2->options.eps(),
                                         add("norm1", *whole.norm1, {kWhole}), add("norm2", *whole.norm2, {kWhole}),
                                         add("qkv", *whole.qkv, {0, 3, head_width}), add("out", *whole.out, {1, 1, head_width}),
                                         add("up", *whole.up, {0}), add("down", *whole.down, {1})});
  train(whole.is_training());
}

at::Tensor ShardedTransformerBlock::forward(const at::Tensor& input) {
  const State& s = *state_;
  const State::WholeVectors whole = s.whole_vectors();
  const at::Tensor projected = s.column_linear(s.norm(input, whole.norm1_weight, whole.norm1_bias, s.epsilon1), *s.qkv);
  const at::Tensor attended = causal_attention(projected, s.options.heads / s.group.size());
  const at::Tensor x = input + s.dropout(s.row_linear(attended, *s.out, whole.out_bias), 0, is_training());
  const at::Tensor hidden = at::gelu(s.column_linear(s.norm(x, whole.norm2_weight, whole.norm2_bias, s.epsilon2), *s.up));
  return x + s.dropout(s.row_linear(hidden, *s.down, whole.down_bias), 1, is_training());
}

}  // namespace cohort
