// The arithmetic of model-parallel ranks, by one process and in their order of sums. Sums are LibTorch's: in the type of the gradient,
// rounded at each addition. Cost: a copy of each value for each reader in another stage, and no message.
//
// Values that cross pipeline stages. A value v of stage s is read by layers of s and of other stages. In a pipeline each other stage gets
// one contiguous copy of v and returns one gradient, the sum over its readers. Stage s adds those up, first of stages of its own worker
// (the last one first, in the order of backward), then of other workers (the first one first), and starts its own backward from that sum,
// to which its own readers add, the last layer first. Here each reader gets its own copy from one operation whose backward adds in that
// order. A weight of several stages of one worker is one tensor there, and each backward adds to it in the order of the schedule table
// (schedule/).
//
// Products in pieces, for P tensor ranks. A value is whole between layers; each layer cuts what it needs.
//
//   outputs divided (column, vocabulary, channels out)   y = [x W_0^T, x W_1^T, ...]; the gradient of x is the sum of the P terms
//   inputs divided (row, channels in)                    y = x_0 W_0^T + x_1 W_1^T + ... + b
//   heads                                                both of them twice, with attention over each rank's heads between
//   positions divided                                    layer norm of each part of the positions: the gradients of its weight and bias are
//                                                        sums of P terms, and so are those of the biases that a block adds to such a part
//   logits divided                                       log of the sum of P sums of exponentials
//
// All sums go ((t_0 + t_1) + t_2) + ..., half precision in float and rounded once. plan_shards() says how each layer is divided; the
// arithmetic is written out here. Everything else (element-wise layers, lookups, norms by channel) has the same bits in pieces.
#include "cohort/verify/pieces.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional/conv.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <variant>

#include "cohort/base/fail.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/models/layers/transformer_block.h"
#include "cohort/pipeline/stage_cut.h"
#include "cohort/pipeline/stage_mail.h"
#include "cohort/schedule/scheduler.h"
#include "cohort/tensor/shard_graph.h"

namespace cohort {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// One input of one layer.
struct ValueReader {
  size_t layer, input;
};

/// The copies of a value, one a reader, and how their gradients are added: group after group, each in its order.
struct Crossing {
  std::vector<ValueReader> readers;
  std::vector<bool> is_sent;                 ///< One a reader: it is in another stage.
  std::vector<std::vector<int64_t>> groups;  ///< Indices of readers.
  std::vector<at::Tensor> copies;            ///< Copies of the current forward.
};

constexpr int64_t kEndOfGroup = -1;

struct ReadInStages : torch::autograd::Function<ReadInStages> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& value, const std::vector<int64_t>& order,
                               const std::vector<int64_t>& is_sent) {
    ctx->saved_data["order"] = order;
    ctx->saved_data["is_sent"] = is_sent;
    variable_list copies;
    for (const int64_t sent : is_sent) copies.push_back(sent ? value.clone(at::MemoryFormat::Contiguous) : value.clone());
    return copies;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const std::vector<int64_t> is_sent = ctx->saved_data["is_sent"].toIntVector();
    at::Tensor total, of_group;
    for (const int64_t place : ctx->saved_data["order"].toIntVector()) {
      if (place == kEndOfGroup) {
        add_defined(total, of_group);
        of_group = at::Tensor();
        continue;
      }
      const at::Tensor& gradient = gradients[static_cast<size_t>(place)];
      add_defined(of_group, gradient.defined() && is_sent[static_cast<size_t>(place)] ? gradient.contiguous() : gradient);
    }
    return {total, at::Tensor(), at::Tensor()};
  }
};

std::vector<ValueReader> readers_of(const LayerGraph& model, size_t producer) {
  std::vector<ValueReader> readers;
  for (size_t layer = producer + 1; layer < model.layers().size(); ++layer)
    for (size_t input = 0; input < model.layers()[layer].inputs.size(); ++input)
      if (model.layers()[layer].inputs[input] == static_cast<int>(producer)) readers.push_back({layer, input});
  return readers;
}

Crossing crossing_of(std::vector<ValueReader> readers, const std::vector<LayerStage>& stages, const LayerStage& made) {
  Crossing crossing;
  crossing.readers = std::move(readers);
  std::map<int, std::vector<int64_t>> places_of_stage;
  std::map<int, int> worker_of_stage;
  for (size_t place = crossing.readers.size(); place-- > 0;) {
    const LayerStage& reader = stages.at(crossing.readers[place].layer);
    places_of_stage[reader.stage].push_back(static_cast<int64_t>(place));
    worker_of_stage[reader.stage] = reader.worker;
  }
  for (const ValueReader& reader : crossing.readers) crossing.is_sent.push_back(stages.at(reader.layer).stage != made.stage);
  for (auto stage = places_of_stage.rbegin(); stage != places_of_stage.rend(); ++stage)
    if (stage->first != made.stage && worker_of_stage[stage->first] == made.worker) crossing.groups.push_back(stage->second);
  for (const auto& [stage, places] : places_of_stage)
    if (stage != made.stage && worker_of_stage[stage] != made.worker) crossing.groups.push_back(places);
  for (const int64_t place : places_of_stage[made.stage]) crossing.groups.push_back({place});
  return crossing;
}

void wrap(LayerGraph& model, size_t producer, const std::shared_ptr<Crossing>& crossing) {
  std::vector<int64_t> order, is_sent(crossing->is_sent.begin(), crossing->is_sent.end());
  for (const std::vector<int64_t>& group : crossing->groups) {
    order.insert(order.end(), group.begin(), group.end());
    order.push_back(kEndOfGroup);
  }
  model.replace_layer(producer, nullptr, [=, inner = model.layers()[producer].function](const LayerGraph::Inputs& in) {
    const at::Tensor value = inner(in);
    crossing->copies = ReadInStages::apply(value, order, is_sent);
    return value;
  });
  for (size_t place = 0; place < crossing->readers.size(); ++place) {
    const ValueReader& reader = crossing->readers[place];
    model.replace_layer(reader.layer, nullptr,
                        [=, inner = model.layers()[reader.layer].function, input = reader.input](LayerGraph::Inputs in) {
                          in.at(input) = std::exchange(crossing->copies.at(place), at::Tensor());
                          return inner(in);
                        });
  }
}

bool shares_weight_with_stage(const LayerGraph& model, const StageCut& cut, size_t layer) {
  const std::string prefix = model.layers()[layer].name + ".";
  return std::any_of(cut.tied.begin(), cut.tied.end(),
                     [&](const TiedWeight& weight) { return weight.name.starts_with(prefix) || weight.user_name.starts_with(prefix); });
}

}  // namespace

void cross_stages(LayerGraph& model, const std::vector<LayerStage>& stages) {
  if (stages.empty()) return;
  if (stages.size() != model.layers().size())
    fail(ErrorCode::kFailed, "verify: stages of ", stages.size(), " layers, and the model has ", model.layers().size());
  for (size_t producer = 0; producer < stages.size(); ++producer) {
    const auto crossing = std::make_shared<Crossing>(crossing_of(readers_of(model, producer), stages, stages[producer]));
    if (std::find(crossing->is_sent.begin(), crossing->is_sent.end(), true) != crossing->is_sent.end()) wrap(model, producer, crossing);
  }
}

BackwardOrder backward_order(const LayerGraph& model, const Layout& layout, const std::vector<LayerStage>& stages) {
  std::vector<int> stage_of;
  for (const LayerStage& layer : stages) stage_of.push_back(layer.stage);
  const StageCut cut = cut_graph(model, stage_of);
  std::vector<std::vector<int>> ranks_of_stage(static_cast<size_t>(cut.num_stages()));
  for (const LayerStage& layer : stages) ranks_of_stage[static_cast<size_t>(layer.stage)] = {layer.worker};
  // A recomputed stage that sends a gradient on makes all its gradients at once, since it may not recompute twice. If only some layers
  // recompute, only those with a shared weight matter, since the order of other sums is the same.
  const std::vector<bool> recompute = recomputed_layers(layout.recompute, model.layers().size());
  std::set<int> runs_twice;
  for (size_t layer = 0; layer < recompute.size(); ++layer)
    if (recompute[layer] && (layout.recompute == "all" || shares_weight_with_stage(model, cut, layer)))
      runs_twice.insert(cut.stage_of[layer]);
  std::vector<bool> at_once(static_cast<size_t>(cut.num_stages()), false);
  for (const StageEdge& edge : cut.edges)
    if (runs_twice.contains(edge.to) && !edge.values.empty()) at_once[static_cast<size_t>(edge.to)] = true;
  return [at_once, scheduler = Scheduler(layout, cut.stage_edges(), ranks_of_stage)](int num_micro_batches) {
    std::vector<std::pair<int, int>> order;
    for (const std::vector<Action>& actions : scheduler(num_micro_batches).actions)
      for (const Action& action : actions) {
        const ActionKind part = at_once[static_cast<size_t>(action.stage)] ? ActionKind::kBackwardInput : ActionKind::kBackwardWeight;
        if (action.kind == ActionKind::kBackward || action.kind == part) order.emplace_back(action.stage, action.micro_batch);
      }
    // The ranks use the same table, so a gradient that it lacks would be missing in both.
    const size_t num_gradients = at_once.size() * static_cast<size_t>(num_micro_batches);
    if (order.size() != num_gradients || std::set(order.begin(), order.end()).size() != num_gradients)
      fail(ErrorCode::kFailed, "verify: the schedule adds ", order.size(), " gradients of ", at_once.size(), " stages and ",
           num_micro_batches, " micro-batches, and each is to be added once");
    return order;
  };
}

namespace {

using Tensors = std::vector<at::Tensor>;

bool is_half(const at::Tensor& tensor) { return tensor.scalar_type() == at::kBFloat16 || tensor.scalar_type() == at::kHalf; }

at::Tensor add_in_order(const Tensors& terms) {
  const bool half = is_half(terms.front());
  at::Tensor sum = half ? terms.front().to(at::kFloat) : terms.front();
  for (size_t i = 1; i < terms.size(); ++i) sum = sum + (half ? terms[i].to(at::kFloat) : terms[i]);
  return half ? sum.to(terms.front().scalar_type()) : sum;
}

/// Piece `rank` of `dim`, contiguous as on the rank.
at::Tensor piece(const at::Tensor& whole, int64_t dim, int rank, int num_ranks) {
  const int64_t size = whole.size(dim) / num_ranks;
  return whole.narrow(dim, rank * size, size).contiguous();
}

/// One copy for each rank; the gradient is the sum of theirs.
struct UsedByAll : torch::autograd::Function<UsedByAll> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& input, int64_t num_ranks) {
    (void)ctx;
    variable_list copies;
    for (int64_t rank = 0; rank < num_ranks; ++rank) copies.push_back(input.clone());
    return copies;
  }
  static variable_list backward(AutogradContext*, const variable_list& gradients) {
    Tensors terms;
    for (const at::Tensor& gradient : gradients)
      if (gradient.defined()) terms.push_back(gradient);
    return {terms.empty() ? at::Tensor() : add_in_order(terms), at::Tensor()};
  }
};

Tensors used_by_all(const at::Tensor& input, int num_ranks) {
  if (!input.defined()) return Tensors(static_cast<size_t>(num_ranks));
  return UsedByAll::apply(input, static_cast<int64_t>(num_ranks));
}

template <typename Function>
Tensors for_each_rank(int num_ranks, Function of_rank) {
  Tensors results;
  for (int rank = 0; rank < num_ranks; ++rank) results.push_back(of_rank(rank));
  return results;
}

/// Makes the gradient of a piece contiguous, as on the rank.
struct OwnGradient : torch::autograd::Function<OwnGradient> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input) {
    (void)ctx;
    return input.clone();
  }
  static variable_list backward(AutogradContext*, const variable_list& gradients) { return {gradients[0].contiguous()}; }
};

/// Puts the pieces of all ranks together along `dim`.
template <typename Function>
at::Tensor put_together(int num_ranks, int64_t dim, Function of_rank) {
  Tensors pieces = for_each_rank(num_ranks, of_rank);
  for (at::Tensor& each : pieces) each = OwnGradient::apply(each);
  return at::cat(pieces, dim);
}

// --- Linear layers and convolutions. ---

/// `product` of the input and a weight {outputs, inputs, ...}, of which the inputs or the outputs are divided. `dim` is that of features in
/// inputs and outputs; the bias gets `bias_shape` to be added to an output.
template <typename Product>
LayerGraph::Function product_in_pieces(Product product, const at::Tensor& weight, const at::Tensor& bias, bool divides_inputs, int64_t dim,
                                       const std::vector<int64_t>& bias_shape, int num_ranks) {
  if (divides_inputs)
    return [=](const LayerGraph::Inputs& in) {
      const at::Tensor sum = add_in_order(for_each_rank(num_ranks, [&](int rank) {
        return product(piece(in[0], dim, rank, num_ranks), piece(weight, 1, rank, num_ranks), at::Tensor());
      }));
      return bias.defined() ? sum + bias.to(sum.scalar_type()).view(bias_shape) : sum;
    };
  return [=](const LayerGraph::Inputs& in) {
    const Tensors x = used_by_all(in[0], num_ranks);
    return put_together(num_ranks, dim, [&](int rank) {
      return product(x[static_cast<size_t>(rank)], piece(weight, 0, rank, num_ranks),
                     bias.defined() ? piece(bias, 0, rank, num_ranks) : bias);
    });
  };
}

LayerGraph::Function linear_in_pieces(const at::Tensor& weight, const at::Tensor& bias, const std::string& placement, int num_ranks) {
  if (placement == "whole") return [=](const LayerGraph::Inputs& in) { return at::linear(in[0], weight, bias); };
  const auto product = [](const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) { return at::linear(x, w, b); };
  return product_in_pieces(product, weight, bias, placement == "row", -1, {-1}, num_ranks);
}

LayerGraph::Function convolution_in_pieces(const std::shared_ptr<torch::nn::Conv2dImpl>& layer, const std::string& placement,
                                           int num_ranks) {
  const auto product = [layer](const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
    const auto& options = layer->options;
    return torch::nn::functional::detail::conv2d(x, weight, bias, options.stride(), options.padding(), options.dilation(), /*groups=*/1);
  };
  return product_in_pieces(product, layer->weight, layer->bias, placement == "channels in", 1, {-1, 1, 1}, num_ranks);
}

// --- Transformer blocks and layer norm. ---

/// Cast to autocast's type, in which ranks exchange it.
at::Tensor as_exchanged(const at::Tensor& input) {
  const c10::DeviceType device = input.device().type();
  return at::autocast::is_autocast_enabled(device) ? input.to(at::autocast::get_autocast_dtype(device)) : input;
}

struct Pieces {
  int num_ranks;
  bool positions;  ///< Each rank has a part of the positions between divided layers.

  at::Tensor norm(const at::Tensor& x, const torch::nn::LayerNormImpl& layer) const {
    const auto& options = layer.options;
    if (!positions) return at::layer_norm(x, options.normalized_shape(), layer.weight, layer.bias, options.eps());
    const Tensors weight = used_by_all(layer.weight, num_ranks), bias = used_by_all(layer.bias, num_ranks);
    return put_together(num_ranks, 1, [&](int rank) {
      const auto r = static_cast<size_t>(rank);
      return at::layer_norm(piece(x, 1, rank, num_ranks), options.normalized_shape(), weight[r], bias[r], options.eps());
    });
  }
  /// The sum of the ranks' terms and the bias, which each rank adds to its own positions if these are divided.
  at::Tensor sum(const Tensors& terms, const at::Tensor& bias) const {
    const at::Tensor whole = add_in_order(terms);
    if (!positions) return whole + bias.to(whole.scalar_type());
    const Tensors biases = used_by_all(bias, num_ranks);
    return put_together(num_ranks, 1, [&](int rank) {
      return piece(whole, 1, rank, num_ranks) + biases[static_cast<size_t>(rank)].to(whole.scalar_type());
    });
  }
  /// A rank's rows of q, of k and of v.
  at::Tensor rows_of_heads(const at::Tensor& qkv, int rank) const {
    Tensors rows;
    for (const at::Tensor& block : qkv.chunk(3, 0)) rows.push_back(piece(block, 0, rank, num_ranks));
    return at::cat(rows, 0);
  }

  at::Tensor block(TransformerBlockImpl& layer, const at::Tensor& input) const {
    const Tensors attention_input = used_by_all(as_exchanged(norm(input, *layer.norm1)), num_ranks);
    const Tensors attended = for_each_rank(num_ranks, [&](int rank) {
      const at::Tensor projected = at::linear(attention_input[static_cast<size_t>(rank)], rows_of_heads(layer.qkv->weight, rank),
                                              rows_of_heads(layer.qkv->bias, rank));
      return at::linear(causal_attention(projected, layer.options().heads / num_ranks), piece(layer.out->weight, 1, rank, num_ranks));
    });
    const at::Tensor x = input + layer.dropout1->forward(sum(attended, layer.out->bias));
    const Tensors network_input = used_by_all(as_exchanged(norm(x, *layer.norm2)), num_ranks);
    const Tensors down = for_each_rank(num_ranks, [&](int rank) {
      const at::Tensor hidden = at::gelu(at::linear(network_input[static_cast<size_t>(rank)], piece(layer.up->weight, 0, rank, num_ranks),
                                                    piece(layer.up->bias, 0, rank, num_ranks)));
      return at::linear(hidden, piece(layer.down->weight, 1, rank, num_ranks));
    });
    return x + layer.dropout2->forward(sum(down, layer.down->bias));
  }
};

// --- The loss. ---

struct CrossEntropyInPieces : torch::autograd::Function<CrossEntropyInPieces> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits, const at::Tensor& target, int64_t num_ranks) {
    const int64_t num_classes = logits.size(-1);
    const at::Tensor rows = logits.reshape({-1, num_classes}).to(at::kFloat), column = target.reshape({-1, 1});
    const at::Tensor largest = std::get<0>(rows.max(1, /*keepdim=*/true)), exponentials = (rows - largest).exp();
    const at::Tensor total = add_in_order(for_each_rank(
        static_cast<int>(num_ranks), [&](int rank) { return piece(exponentials, 1, rank, static_cast<int>(num_ranks)).sum(1); }));
    at::Tensor gradient = exponentials / total.unsqueeze(1);
    gradient.scatter_add_(1, column, at::full(column.sizes(), -1.0, rows.options()));
    ctx->save_for_backward({gradient});
    ctx->saved_data["type"] = static_cast<int64_t>(logits.scalar_type());
    ctx->saved_data["shape"] = logits.sizes().vec();
    return (total.log() - (rows.gather(1, column) - largest).view({-1})).mean();
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const at::Tensor gradient = ctx->get_saved_variables()[0];
    const at::Tensor scaled = gradient * (gradients[0] / static_cast<double>(gradient.size(0)));
    return {scaled.reshape(ctx->saved_data["shape"].toIntVector()).to(static_cast<at::ScalarType>(ctx->saved_data["type"].toInt())),
            at::Tensor(), at::Tensor()};
  }
};

/// Copies of borrowed weights, by name.
using Weights = std::map<std::string, at::Tensor>;

void replace_linear(LayerGraph& model, size_t index, const std::string& placement, int num_ranks, const Weights& copies) {
  const LayerGraph::Layer& layer = model.layers()[index];
  const auto named = layer.module->named_parameters();
  const auto copy = copies.find(layer.name + ".weight");
  model.replace_layer(index, nullptr,
                      linear_in_pieces(copy == copies.end() ? named["weight"] : copy->second,
                                       named.contains("bias") ? named["bias"] : at::Tensor(), placement, num_ranks));
}

void replace(LayerGraph& model, size_t index, const LayerPlacement& placement, int num_ranks, const Weights& copies) {
  const LayerGraph::Layer& layer = model.layers()[index];
  const Pieces pieces{num_ranks, placement.takes_positions};
  if (placement.placement == "heads") {
    const auto block = std::dynamic_pointer_cast<TransformerBlockImpl>(layer.module);
    model.replace_layer(index, nullptr, [=](const LayerGraph::Inputs& in) { return pieces.block(*block, in[0]); });
  } else if (const auto norm = std::dynamic_pointer_cast<torch::nn::LayerNormImpl>(layer.module); norm && placement.takes_positions) {
    model.replace_layer(index, nullptr, [=](const LayerGraph::Inputs& in) { return pieces.norm(in[0], *norm); });
  } else if (placement.placement == "channels in" || placement.placement == "channels out") {
    const auto convolution = std::dynamic_pointer_cast<torch::nn::Conv2dImpl>(layer.module);
    if (!std::holds_alternative<torch::enumtype::kZeros>(convolution->options.padding_mode()))
      fail(ErrorCode::kBadInput, "verify: layer ", layer.name,
           name_settings(" pads with other values than zeros, which no plain implementation is written for; verify with --layout dp "
                         "or pp, or pad with zeros"));
    model.replace_layer(index, nullptr, convolution_in_pieces(convolution, placement.placement, num_ranks));
  } else if (layer.kind == "linear" && placement.placement != "whole") {
    replace_linear(model, index, placement.placement, num_ranks, copies);
  }
}

AlteredModel borrow(LayerGraph& model, const std::vector<TiedUse>& uses, Weights& copies) {
  AlteredModel altered;
  for (const TiedUse& use : uses) {
    const at::Tensor owner = find_parameter(model, use.name);
    const at::Tensor copy = owner.detach().clone().set_requires_grad(owner.requires_grad());
    copies[use.name] = copy;
    altered.borrowed.push_back({owner, copy, use.owner_stage, use.stage, use.of_same_worker});
  }
  return altered;
}

}  // namespace

AlteredModel compute_in_pieces(LayerGraph& model, const Layout& layout, const std::vector<TiedUse>& borrowed) {
  Weights copies;
  std::vector<TiedUse> of_linear_layers;
  for (const LayerGraph::Layer& layer : model.layers())
    for (const TiedUse& use : borrowed)
      if (layer.kind == "linear" && use.name == layer.name + ".weight") of_linear_layers.push_back(use);
  AlteredModel altered = borrow(model, of_linear_layers, copies);
  if (layout.tp == 1) {
    for (size_t i = 0; i < model.layers().size(); ++i)
      if (copies.contains(model.layers()[i].name + ".weight")) replace_linear(model, i, "whole", 1, copies);
    return altered;
  }
  const ShardPlan plan = plan_shards(model, layout.tp, {.sequence_parallel = layout.sequence});
  for (size_t i = 0; i < plan.placements.size(); ++i) {
    if (plan.placements[i].placement == "whole" && copies.contains(plan.placements[i].layer + ".weight"))
      replace_linear(model, i, "whole", layout.tp, copies);
    else replace(model, i, plan.placements[i], layout.tp, copies);
  }
  if (plan.logits_divided && !model.loss())  // The model's own loss takes whole logits.
    altered.loss = [num_ranks = int64_t{layout.tp}](const at::Tensor& logits, const at::Tensor& target) {
      return CrossEntropyInPieces::apply(logits, target, num_ranks);
    };
  return altered;
}

}  // namespace cohort
