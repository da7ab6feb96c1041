// Embeddings by vocabulary: rank r has rows [r V / P, (r + 1) V / P) of a table {V, width}.
//
// Steps: (1) ids of other ranks' rows become row 0, and their result zero; (2) one all-reduce of {samples, positions, width}, in which each
// element has one rank's value and zeros. Backward: nothing; a rank's rows get the gradients of its ids. With sequence parallelism (2) is
// a reduce-scatter that leaves each rank its positions. The table of positions is small and stays whole; where the positions are divided
// each rank adds its own rows, and the gradients of the rows are joined. Source: Shoeybi et al. 2019, section 3.

#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <torch/nn/modules/embedding.h>

#include <memory>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/models/layers/transformer_block.h"
#include "cohort/tensor/collective_ops.h"
#include "cohort/tensor/shard_rules.h"

namespace cohort::shard_rules {
namespace {

/// The part of a table that this rank looks up.
struct Rows {
  at::Tensor weight;     ///< {rows, width}
  int64_t first, whole;  ///< Number of its first row, and of rows of all ranks.
  int64_t padding_row;   ///< Here, or -1: the row that gets no gradient.
};

/// The rows of `ids` that this rank has, and zeros for the others.
at::Tensor look_up(const at::Tensor& ids, const Rows& rows) {
  const at::Tensor flat = ids.to(at::kLong).contiguous();
  at::Tensor local = at::empty(flat.sizes(), flat.options()), elsewhere = at::empty(flat.sizes(), flat.options().dtype(at::kBool));
  const int64_t* id = flat.const_data_ptr<int64_t>();
  int64_t* row = local.mutable_data_ptr<int64_t>();
  bool* is_elsewhere = elsewhere.mutable_data_ptr<bool>();
  const int64_t num_rows = rows.weight.size(0);
  for (int64_t i = 0; i < flat.numel(); ++i) {
    if (id[i] < 0 || id[i] >= rows.whole) {
      fail(ErrorCode::kBadInput, "embedding: the input holds ", id[i], ", which is no row of a table of ", rows.whole);
    }
    is_elsewhere[i] = id[i] < rows.first || id[i] >= rows.first + num_rows;
    row[i] = is_elsewhere[i] ? 0 : id[i] - rows.first;
  }
  return at::embedding(rows.weight, local, rows.padding_row).masked_fill(elsewhere.unsqueeze(-1), 0.0);
}

/// Why the lookup cannot be divided, or "".
std::string why_not(const torch::nn::EmbeddingImpl& table, const Question& question) {
  const auto& options = table.options;
  if (options.max_norm().has_value() || options.scale_grad_by_freq() || options.sparse())
    return "it has max_norm, scale_grad_by_freq or sparse gradients";
  if (!question.divides(table.weight.size(0)))
    return concat("its ", table.weight.size(0), " rows do not divide by ", question.num_ranks, " ranks");
  return "";
}

Rows rows_of(const torch::nn::EmbeddingImpl& table, const Group& group) {
  const int64_t whole = table.weight.size(0), mine = whole / group.size(), first = group.rank() * mine;
  int64_t padding = table.options.padding_idx().value_or(-1);
  if (padding >= 0) padding = padding >= first && padding < first + mine ? padding - first : -1;
  return {table.weight, first, whole, padding};
}

Plan plain_embedding(const Question& question, const torch::nn::EmbeddingImpl& table) {
  if (const std::string reason = why_not(table, question); !reason.empty()) return whole(reason);
  Plan plan = divided(Lay::kWhole);
  plan.placement = "vocabulary";
  plan.divisions.push_back({"weight", 0});
  plan.apply = set_function(question.index, [rows = rows_of(table, question.group), group = question.group](const LayerGraph::Inputs& in) {
    return sum_over_ranks(look_up(in[0], rows), group);
  });
  return plan;
}

/// Rows 0, 1, ... of the table of positions, or this rank's share of them.
at::Tensor position_rows(const ByteEmbeddingImpl& embedding, int64_t num_positions, bool divide, const Group& group) {
  const at::Tensor& table = embedding.position->weight;
  if (num_positions > table.size(0)) {
    fail(ErrorCode::kBadInput, "the model was built for a context of ", table.size(0), " bytes, but a sample has ", num_positions);
  }
  const at::Tensor used = num_positions == table.size(0) ? table : table.narrow(0, 0, num_positions);
  return divide ? slice_for_rank(used, 0, group) : used;
}

Plan byte_embedding(const Question& question, const std::shared_ptr<ByteEmbeddingImpl>& embedding) {
  const std::string reason = why_not(*embedding->token, question);
  const bool by_vocabulary = reason.empty(), by_position = question.divide_positions;
  Plan plan = divided(by_position ? Lay::kPositions : Lay::kWhole);
  plan.placement = by_vocabulary ? "vocabulary" : "whole";
  plan.reason = reason;
  if (by_vocabulary) plan.divisions.push_back({"token.weight", 0});
  if (!by_vocabulary && !by_position) return plan;  // as it is
  const Rows rows = rows_of(*embedding->token, question.group);
  plan.apply = set_function(question.index, [=, group = question.group](const LayerGraph::Inputs& in) {
    constexpr int64_t kPositionDim = 1;
    const at::Tensor positions = position_rows(*embedding, in[0].size(1), by_position, group);
    if (!by_vocabulary) return slice_for_rank(embedding->token->forward(in[0]), kPositionDim, group) + positions;
    const at::Tensor mine = look_up(in[0], rows);
    return (by_position ? sum_and_slice(mine, kPositionDim, group) : sum_over_ranks(mine, group)) + positions;
  });
  return plan;
}

}  // namespace

int64_t num_positions(const LayerGraph::Layer& layer) {
  const auto* embedding = dynamic_cast<const ByteEmbeddingImpl*>(layer.module.get());
  return embedding == nullptr ? 0 : embedding->position->weight.size(0);
}

Plan embedding(const Question& question) {
  const auto& module = question.layer->module;
  if (question.inputs.at(0) != Lay::kWhole) return {};
  if (auto bytes = std::dynamic_pointer_cast<ByteEmbeddingImpl>(module)) return byte_embedding(question, bytes);
  if (auto table = std::dynamic_pointer_cast<torch::nn::EmbeddingImpl>(module)) return plain_embedding(question, *table);
  return whole("its module is no embedding that is known");
}

}  // namespace cohort::shard_rules
