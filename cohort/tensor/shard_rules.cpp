// The rules of shard_rules.h by family of layers.
#include "cohort/tensor/shard_rules.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/group_norm.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <torch/nn/functional/conv.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <memory>
#include <variant>

#include "cohort/base/fail.h"
#include "cohort/models/layers/dropout.h"
#include "cohort/models/layers/ghost_batch_norm.h"
#include "cohort/models/layers/transformer_block.h"
#include "cohort/tensor/collective_ops.h"
#include "cohort/tensor/sharded_block.h"

namespace cohort::shard_rules {

LayerPlan whole(const std::string& reason) {
  LayerPlan plan;
  plan.reason = reason;
  return plan;
}

int64_t divided_dim(Placement placement) { return placement == Placement::kFeatures ? -1 : 1; }

int64_t num_positions(const LayerGraph::Layer& layer) {
  const auto* embedding = dynamic_cast<const ByteEmbeddingImpl*>(layer.module.get());
  return embedding == nullptr ? 0 : embedding->position->weight.size(0);
}

namespace {

/// A plan for a layer that works on each rank's block and returns the same block.
LayerPlan divided(Placement output) {
  LayerPlan plan;
  plan.placement = "divided";
  plan.needs_whole_inputs = false;
  plan.output = output;
  return plan;
}

/// The plan's `apply` for a layer that keeps its module.
std::function<void(LayerGraph&, std::map<std::string, ParameterShard>&)> set_function(size_t index, LayerGraph::Function function) {
  return [index, function = std::move(function)](LayerGraph& graph, std::map<std::string, ParameterShard>&) {
    graph.replace_layer(index, nullptr, function);
  };
}

// Linear layers: y = x W^T + b, W {out, in}, for layers of kind "linear" with the parameters weight and bias.
//
//   column      W and b divided by rows: y_r = x W_r^T + b_r, the features of y divided. Backward: one all-reduce of the gradient of x.
//   outputs     the same for the last layer: each rank has some of the model's outputs (logits: of the classes).
//   row         W divided by columns, x_r the rank's features: y = sum over ranks of x_r W_r^T, + b once after the sum. One all-reduce
//               of y; backward: nothing, or one all-gather of the gradient where x was whole and is sliced.
//
// Divided input is taken by "row", so that column -> element-wise -> row costs one sum forward and one backward for two layers. Positions
// that are divided are gathered before "column", whose backward then sums and slices. Source: Shoeybi et al. 2019, section 3.

/// The parameters of y = x W^T + b, whatever the module's type (a tied output layer is not a torch::nn::Linear); weight undefined for other
/// parameters.
struct LinearParameters {
  at::Tensor weight, bias;
};

LinearParameters parameters_of(const torch::nn::Module* module) {
  if (module == nullptr) return {};
  const auto named = module->named_parameters();
  const at::Tensor* weight = named.find("weight");
  const at::Tensor* bias = named.find("bias");
  if (weight == nullptr || weight->dim() != 2 || named.size() != (bias ? 2U : 1U)) return {};
  return {*weight, bias ? *bias : at::Tensor()};
}

LayerPlan column(const LayerQuery& query, const LinearParameters& linear, Placement input) {
  LayerPlan plan = divided(Placement::kFeatures);
  plan.placement = query.is_last ? "outputs" : "column";
  plan.output_may_stay_divided = true;
  plan.divisions.push_back({"weight", 0});
  if (linear.bias.defined()) plan.divisions.push_back({"bias", 0});
  const bool gather_positions = input == Placement::kPositions;
  plan.apply = set_function(query.index, [=, group = query.group](const LayerGraph::Inputs& in) {
    const at::Tensor x = gather_positions ? gather_with_sum(in[0], divided_dim(Placement::kPositions), group) : copy_to_ranks(in[0], group);
    return at::linear(x, linear.weight, linear.bias);
  });
  return plan;
}

LayerPlan row(const LayerQuery& query, const LinearParameters& linear, Placement input) {
  LayerPlan plan = divided(Placement::kWhole);
  plan.placement = "row";
  plan.divisions.push_back({"weight", 1});
  const bool slice = input == Placement::kWhole;
  plan.apply = set_function(query.index, [=, group = query.group](const LayerGraph::Inputs& in) {
    const at::Tensor x = slice ? slice_for_rank(in[0], divided_dim(Placement::kFeatures), group) : in[0];
    const at::Tensor y = sum_over_ranks(at::linear(x, linear.weight), group);
    return linear.bias.defined() ? y + linear.bias.to(y.scalar_type()) : y;
  });
  return plan;
}

LayerPlan linear(const LayerQuery& query) {
  const LinearParameters linear = parameters_of(query.layer->module.get());
  if (!linear.weight.defined()) return whole("its parameters are not those of a linear layer");
  const int64_t num_outputs = linear.weight.size(0), num_inputs = linear.weight.size(1);
  const Placement input = query.inputs.at(0);
  // A shared weight is divided like the embedding's, by rows.
  const bool row_possible = query.divides(num_inputs) && !query.shares_weight;
  if (input == Placement::kFeatures && row_possible) return row(query, linear, input);
  if ((input == Placement::kWhole || input == Placement::kPositions) && query.divides(num_outputs)) return column(query, linear, input);
  if (input == Placement::kWhole && row_possible) return row(query, linear, input);
  return whole(concat("neither its ", num_outputs, " outputs nor its ", num_inputs, " inputs can be divided by ", query.num_ranks, " ranks",
                      query.shares_weight ? " (the weight is another layer's too: outputs alone)" : ""));
}

// Convolutions: W {out, in, height, width}, x {samples, in, ...}, y {samples, out, ...}.
//
//   channels out  W and b divided by output channels, x whole: the channels of y are divided. Backward: one all-reduce of the gradient of
//   x. channels in   W divided by input channels, x_r the rank's channels: y = sum over ranks of conv(x_r, W_r), + b once after the sum.
//   One
//                 all-reduce of y; backward: nothing, or one all-gather where x was whole and is sliced.
//
// The same pair as column and row of linear layers. Source: Dryden et al. 2019, "Channel and filter parallelism for large-scale CNN
// training", section 3.

using ConvolutionModule = std::shared_ptr<torch::nn::Conv2dImpl>;

LayerPlan channels_out(const LayerQuery& query, const ConvolutionModule& convolution) {
  LayerPlan plan = divided(Placement::kChannels);
  plan.placement = "channels out";
  plan.divisions.push_back({"weight", 0});
  if (convolution->bias.defined()) plan.divisions.push_back({"bias", 0});
  plan.apply = set_function(query.index, [convolution, group = query.group](const LayerGraph::Inputs& in) {
    return convolution->forward(copy_to_ranks(in[0], group));
  });
  return plan;
}

LayerPlan channels_in(const LayerQuery& query, const ConvolutionModule& convolution, bool slice) {
  LayerPlan plan = divided(Placement::kWhole);
  plan.placement = "channels in";
  plan.divisions.push_back({"weight", 1});
  plan.apply = set_function(query.index, [convolution, slice, group = query.group](const LayerGraph::Inputs& in) {
    const auto& options = convolution->options;
    const at::Tensor x = slice ? slice_for_rank(in[0], divided_dim(Placement::kChannels), group) : in[0];
    const at::Tensor mine = torch::nn::functional::detail::conv2d(x, convolution->weight, {}, options.stride(), options.padding(),
                                                                  options.dilation(), /*groups=*/1);
    const at::Tensor y = sum_over_ranks(mine, group);
    return convolution->bias.defined() ? y + convolution->bias.to(y.scalar_type()).view({-1, 1, 1}) : y;
  });
  return plan;
}

LayerPlan convolution(const LayerQuery& query) {
  const auto convolution = std::dynamic_pointer_cast<torch::nn::Conv2dImpl>(query.layer->module);
  if (!convolution) return whole("its module is not a torch::nn::Conv2d");
  if (convolution->options.groups() != 1) return whole("its channels are in groups");
  if (query.shares_weight) return whole("its weight is another layer's too");
  // Paddings other than zeros are done by the module, which adds the bias.
  const bool zero_padding = std::holds_alternative<torch::enumtype::kZeros>(convolution->options.padding_mode());
  const int64_t num_outputs = convolution->weight.size(0), num_inputs = convolution->weight.size(1);
  const Placement input = query.inputs.at(0);
  const bool in_possible = zero_padding && query.divides(num_inputs);
  if (input == Placement::kChannels && in_possible) return channels_in(query, convolution, /*slice=*/false);
  if (input == Placement::kWhole && query.divides(num_outputs)) return channels_out(query, convolution);
  if (input == Placement::kWhole && in_possible) return channels_in(query, convolution, /*slice=*/true);
  return whole(concat("neither its ", num_outputs, " output channels nor its ", num_inputs, " input channels can be divided by ",
                      query.num_ranks, " ranks"));
}

// Embeddings by vocabulary: rank r has rows [r V / P, (r + 1) V / P) of a table {V, width}.
//
// Steps: (1) ids of other ranks' rows become row 0, and their result zero; (2) one all-reduce of {samples, positions, width}, in which each
// element has one rank's value and zeros. Backward: nothing; a rank's rows get the gradients of its ids. With sequence parallelism (2) is
// a reduce-scatter that leaves each rank its positions. The table of positions is small and stays whole; where the positions are divided
// each rank adds its own rows, and the gradients of the rows are joined. Source: Shoeybi et al. 2019, section 3.

/// This rank's rows of a table.
struct Rows {
  at::Tensor weight;     ///< {rows, width}
  int64_t first, whole;  ///< Index of its first row, and rows of all ranks.
  int64_t padding_row;   ///< This rank's row without a gradient, or -1.
};

/// The rows of `ids` on this rank, and zeros for the others.
at::Tensor look_up(const at::Tensor& ids, const Rows& rows) {
  const at::Tensor flat = ids.to(at::kLong).contiguous();
  at::Tensor local = at::empty(flat.sizes(), flat.options()), elsewhere = at::empty(flat.sizes(), flat.options().dtype(at::kBool));
  const int64_t* id = flat.const_data_ptr<int64_t>();
  int64_t* row = local.mutable_data_ptr<int64_t>();
  bool* is_elsewhere = elsewhere.mutable_data_ptr<bool>();
  const int64_t num_rows = rows.weight.size(0);
  for (int64_t i = 0; i < flat.numel(); ++i) {
    if (id[i] < 0 || id[i] >= rows.whole) {
      fail(ErrorCode::kBadInput, "embedding: the input holds ", id[i], ", which is not a row of a table of ", rows.whole);
    }
    is_elsewhere[i] = id[i] < rows.first || id[i] >= rows.first + num_rows;
    row[i] = is_elsewhere[i] ? 0 : id[i] - rows.first;
  }
  return at::embedding(rows.weight, local, rows.padding_row).masked_fill(elsewhere.unsqueeze(-1), 0.0);
}

/// Why the look-up cannot be divided, or "".
std::string why_not(const torch::nn::EmbeddingImpl& table, const LayerQuery& query) {
  const auto& options = table.options;
  if (options.max_norm().has_value() || options.scale_grad_by_freq() || options.sparse())
    return "it has max_norm, scale_grad_by_freq or sparse gradients";
  if (!query.divides(table.weight.size(0)))
    return concat("its ", table.weight.size(0), " rows do not divide by ", query.num_ranks, " ranks");
  return "";
}

Rows rows_of(const torch::nn::EmbeddingImpl& table, const Group& group) {
  const int64_t whole = table.weight.size(0), mine = whole / group.size(), first = group.rank() * mine;
  int64_t padding = table.options.padding_idx().value_or(-1);
  if (padding >= 0) padding = padding >= first && padding < first + mine ? padding - first : -1;
  return {table.weight, first, whole, padding};
}

LayerPlan plain_embedding(const LayerQuery& query, const torch::nn::EmbeddingImpl& table) {
  if (const std::string reason = why_not(table, query); !reason.empty()) return whole(reason);
  LayerPlan plan = divided(Placement::kWhole);
  plan.placement = "vocabulary";
  plan.divisions.push_back({"weight", 0});
  plan.apply = set_function(query.index, [rows = rows_of(table, query.group), group = query.group](const LayerGraph::Inputs& in) {
    return sum_over_ranks(look_up(in[0], rows), group);
  });
  return plan;
}

/// Rows 0, 1, ... of the table of positions, or this rank's block of them.
at::Tensor position_rows(const ByteEmbeddingImpl& embedding, int64_t num_positions, bool divide, const Group& group) {
  const at::Tensor& table = embedding.position->weight;
  if (num_positions > table.size(0)) {
    fail(ErrorCode::kBadInput, "the model was built for a context of ", table.size(0), " bytes, but a sample has ", num_positions);
  }
  const at::Tensor used = num_positions == table.size(0) ? table : table.narrow(0, 0, num_positions);
  return divide ? slice_for_rank(used, 0, group) : used;
}

LayerPlan byte_embedding(const LayerQuery& query, const std::shared_ptr<ByteEmbeddingImpl>& embedding) {
  const std::string reason = why_not(*embedding->token, query);
  const bool by_vocabulary = reason.empty(), by_position = query.divide_positions;
  LayerPlan plan = divided(by_position ? Placement::kPositions : Placement::kWhole);
  plan.placement = by_vocabulary ? "vocabulary" : "whole";
  plan.reason = reason;
  if (by_vocabulary) plan.divisions.push_back({"token.weight", 0});
  if (!by_vocabulary && !by_position) return plan;  // as it is
  const Rows rows = rows_of(*embedding->token, query.group);
  plan.apply = set_function(query.index, [=, group = query.group](const LayerGraph::Inputs& in) {
    constexpr int64_t kPositionDim = 1;
    const at::Tensor positions = position_rows(*embedding, in[0].size(1), by_position, group);
    if (!by_vocabulary) return slice_for_rank(embedding->token->forward(in[0]), kPositionDim, group) + positions;
    const at::Tensor mine = look_up(in[0], rows);
    return (by_position ? sum_and_slice(mine, kPositionDim, group) : sum_over_ranks(mine, group)) + positions;
  });
  return plan;
}

LayerPlan embedding(const LayerQuery& query) {
  const auto& module = query.layer->module;
  if (query.inputs.at(0) != Placement::kWhole) return {};
  if (auto bytes = std::dynamic_pointer_cast<ByteEmbeddingImpl>(module)) return byte_embedding(query, bytes);
  if (auto table = std::dynamic_pointer_cast<torch::nn::EmbeddingImpl>(module)) return plain_embedding(query, *table);
  return whole("its module is an unknown embedding");
}

// Transformer blocks: heads and hidden units are divided within the block (sharded_block.h); its input and output are whole, or a block of
// the positions.

LayerPlan transformer_block(const LayerQuery& query) {
  const auto block = std::dynamic_pointer_cast<TransformerBlockImpl>(query.layer->module);
  if (!block) return whole("its module is an unknown block");
  if (const std::string reason = why_not_divided(*block, query.num_ranks); !reason.empty()) return whole(reason);
  if (query.shares_weight) return whole("its weight is another layer's too");
  const Placement input = query.inputs.at(0);
  if (input != Placement::kWhole && input != Placement::kPositions) return {};
  LayerPlan plan = divided(input);
  plan.placement = "heads";
  plan.apply = [block, input, index = query.index, group = query.group](LayerGraph& graph, std::map<std::string, ParameterShard>& shards) {
    auto part = std::make_shared<ShardedTransformerBlock>(*block, group, /*sequence_parallel=*/input == Placement::kPositions,
                                                          graph.layers()[index].name + ".", shards);
    graph.replace_layer(index, part, [part](const LayerGraph::Inputs& in) { return part->forward(in[0]); });
  };
  return plan;
}

// Normalisation. Statistics of one channel, or of a group of channels, need no other rank where the channels are divided: weight, bias and
// running statistics are divided likewise, and nothing is exchanged. Layer norm works on all features of a position, so it takes whole
// values or, with sequence parallelism, a part of the positions: its weight is then the same on all ranks, and their gradients of it,
// each of its own positions, are summed (two all-reduces of `features` numbers in backward).

LayerPlan batch_norm(const LayerQuery& query) {
  if (query.inputs.at(0) != Placement::kChannels) return {};
  const torch::nn::Module* module = query.layer->module.get();
  if (dynamic_cast<const torch::nn::BatchNorm2dImpl*>(module) == nullptr && dynamic_cast<const GhostBatchNorm2dImpl*>(module) == nullptr)
    return whole("its module is an unknown batch norm");
  if (query.shares_weight) return whole("its weight is another layer's too");
  LayerPlan plan = divided(Placement::kChannels);
  for (const auto& parameter : module->named_parameters()) plan.divisions.push_back({parameter.key(), 0});
  for (const auto& buffer : module->named_buffers()) {
    if (buffer.value().dim() == 1) plan.divisions.push_back({buffer.key(), 0});  // not the counter of batches
  }
  return plan;  // the module works on as many channels as its parameters have
}

LayerPlan group_norm(const LayerQuery& query) {
  const auto norm = std::dynamic_pointer_cast<torch::nn::GroupNormImpl>(query.layer->module);
  if (!norm) return whole("its module is not a torch::nn::GroupNorm");
  if (query.shares_weight) return whole("its weight is another layer's too");
  const int64_t num_groups = norm->options.num_groups();
  if (!query.divides(num_groups)) return whole(concat("its ", num_groups, " groups do not divide by ", query.num_ranks, " ranks"));
  if (query.inputs.at(0) != Placement::kChannels) return {};
  LayerPlan plan = divided(Placement::kChannels);
  for (const auto& parameter : norm->named_parameters()) plan.divisions.push_back({parameter.key(), 0});
  plan.apply = set_function(query.index, [norm, my_groups = num_groups / query.num_ranks](const LayerGraph::Inputs& in) {
    return at::group_norm(in[0], my_groups, norm->weight, norm->bias, norm->options.eps());
  });
  return plan;
}

LayerPlan layer_norm(const LayerQuery& query) {
  if (query.inputs.at(0) != Placement::kPositions) return {};
  const auto norm = std::dynamic_pointer_cast<torch::nn::LayerNormImpl>(query.layer->module);
  if (!norm) return whole("its module is not a torch::nn::LayerNorm");
  if (norm->options.normalized_shape().size() != 1) return whole("it normalises over positions");
  LayerPlan plan = divided(Placement::kPositions);
  plan.apply = set_function(query.index, [norm, group = query.group](const LayerGraph::Inputs& in) {
    const auto of_all_ranks = [&](const at::Tensor& parameter) {
      return parameter.defined() ? copy_to_ranks(parameter, group) : parameter;
    };
    const at::Tensor weight = of_all_ranks(norm->weight), bias = of_all_ranks(norm->bias);  // in this order on all ranks
    return at::layer_norm(in[0], norm->options.normalized_shape(), weight, bias, norm->options.eps());
  });
  return plan;
}

// Layers without parameters. Element-wise ones take any block; those that work within a channel take a block of the channels. None
// exchanges anything.
//
// Dropout on a block: one process draws the factors of all elements, so each rank draws them all and keeps its own. Cost: draws and memory
// of the whole tensor on every rank; gathering the tensor would cost that and an exchange.
// Cost: the whole tensor's draws and memory for them, on every rank; the alternative, gathering the tensor, costs that and an exchange.

LayerPlan pointwise(const LayerQuery& query) {
  const auto& module = query.layer->module;
  if (module && !module->parameters().empty()) return whole("it has parameters, unlike layers of its kind");
  const Placement input = query.inputs.at(0);
  return input == Placement::kWhole ? LayerPlan{} : divided(input);
}

LayerPlan per_channel(const LayerQuery& query) {
  return query.inputs.at(0) == Placement::kChannels ? divided(Placement::kChannels) : LayerPlan{};
}

/// {samples, channels / ranks, h, w} -> {samples, channels h w / ranks}: channels are the slowest, so parts stay parts.
LayerPlan flatten(const LayerQuery& query) {
  const auto* module = dynamic_cast<const torch::nn::FlattenImpl*>(query.layer->module.get());
  const bool keeps_samples = module == nullptr || (module->options.start_dim() == 1 && module->options.end_dim() == -1);
  return query.inputs.at(0) == Placement::kChannels && keeps_samples ? divided(Placement::kFeatures) : LayerPlan{};
}

/// {samples, channels / ranks, h, w} -> {samples, channels / ranks}
LayerPlan global_mean(const LayerQuery& query) {
  return query.inputs.at(0) == Placement::kChannels ? divided(Placement::kFeatures) : LayerPlan{};
}

LayerPlan add(const LayerQuery& query) {
  for (const Placement placement : query.inputs) {
    if (placement != query.inputs.front()) return {};
  }
  return query.inputs.front() == Placement::kWhole ? LayerPlan{} : divided(query.inputs.front());
}

/// Multiplies by this rank's block of `module`'s factors for the whole tensor.
template <typename Module>
LayerPlan divided_dropout(const LayerQuery& query, const std::shared_ptr<Module>& module) {
  const Placement placement = query.inputs.at(0);
  LayerPlan plan = divided(placement);
  plan.apply = set_function(query.index, [module, dim = divided_dim(placement), group = query.group](const LayerGraph::Inputs& in) {
    if (!module->is_training()) return module->forward(in[0]);
    std::vector<int64_t> shape = in[0].sizes().vec();
    shape[static_cast<size_t>(dim < 0 ? dim + in[0].dim() : dim)] *= group.size();
    const at::Tensor factors = module->forward(at::ones(shape, in[0].options()));
    return in[0] * slice_for_rank(factors, dim, group);
  });
  return plan;
}

LayerPlan dropout(const LayerQuery& query) {
  if (query.inputs.at(0) == Placement::kWhole) return {};
  if (auto ours = std::dynamic_pointer_cast<DropoutImpl>(query.layer->module)) return divided_dropout(query, ours);
  if (auto torchs = std::dynamic_pointer_cast<torch::nn::DropoutImpl>(query.layer->module)) return divided_dropout(query, torchs);
  return whole("its module is an unknown dropout");
}

}  // namespace

Rule rule_of(const std::string& kind) {
  static const std::map<std::string, Rule> table = {
      {"linear", linear},
      {"conv2d", convolution},
      {"embedding", embedding},
      {"transformerblock", transformer_block},
      {"batchnorm2d", batch_norm},
      {"ghostbatchnorm2d", batch_norm},
      {"groupnorm", group_norm},
      {"layernorm", layer_norm},
      {"relu", pointwise},
      {"relu6", pointwise},
      {"leakyrelu", pointwise},
      {"elu", pointwise},
      {"gelu", pointwise},
      {"silu", pointwise},
      {"mish", pointwise},
      {"softplus", pointwise},
      {"sigmoid", pointwise},
      {"tanh", pointwise},
      {"hardtanh", pointwise},
      {"identity", pointwise},
      {"maxpool2d", per_channel},
      {"avgpool2d", per_channel},
      {"adaptivemaxpool2d", per_channel},
      {"adaptiveavgpool2d", per_channel},
      {"flatten", flatten},
      {"mean", global_mean},
      {"add", add},
      {"dropout", dropout},
  };
  const auto found = table.find(kind);
  return found == table.end() ? nullptr : found->second;
}

}  // namespace cohort::shard_rules
