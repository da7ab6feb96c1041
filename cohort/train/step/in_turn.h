#pragma once
// One process that does in turn what the ranks of a layout do side by side, in the same order of arithmetic: what `cohort verify` holds a
// layout against, bit by bit. A plain loop over shares, by itself: no bucket, no hook, no schedule, no exchange.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "cohort/data/loader.h"
#include "cohort/job/layout.h"
#include "cohort/parallel/common/parameters.h"

namespace cohort {

class LayerGraph;

/// A tied weight that a stage borrows from another: the layer computes with `copy`, a leaf that is no parameter of the model.
struct BorrowedWeight {
  at::Tensor owner, copy;
  int owner_stage = 0, stage = 0;
  /// One worker runs both stages and has one tensor, to which each adds the gradient of a micro-batch when its backward comes. Else the
  /// borrower adds up those of a round of micro-batches and hands them back at its end.
  bool of_same_worker = false;
};

/// The (stage, micro-batch) of a round in the order in which a worker adds gradients of weights.
using BackwardOrder = std::function<std::vector<std::pair<int, int>>(int num_micro_batches)>;

/// Between begin_piece() and end_piece() the model has the buffers that the rank in question would have, and no gradients; end_step()
/// leaves in `.grad` the sum over ranks, each of which has added up its own pieces first, and in the buffers the ranks' average. One
/// thread; the model must outlive it.
class InTurn {
 public:
  /// `layout` is that of the ranks; its tensor degree does not matter here. `order`: where a weight is borrowed `of_same_worker`, and then
  /// all pipelines have the same.
  InTurn(LayerGraph& model, const Layout& layout, std::vector<BorrowedWeight> borrowed, BackwardOrder order = {});

  /// Pipelines, or data-parallel ranks, that divide the batch.
  int num_shares() const { return num_shares_; }
  /// A whole step: calls `compute` for each piece of the batch that has samples, which begin at `offset` in it.
  void step(const LoadedBatch& batch, const std::function<void(const Share& piece, int64_t offset)>& compute);
  void begin_step();
  /// `num_samples` in micro-step `number` of a share. A share's pieces come one after the other.
  void begin_piece(int share, int number, int64_t num_samples);
  void end_piece();
  void end_step(int64_t num_samples);

 private:
  /// A buffer as each rank that has it has it, or a gradient in the order in which it is added up: terms[k][rank]; first over the ranks of
  /// each row, then over rows.
  struct Buffer {
    NamedTensor here;
    at::Tensor before;  ///< The step.
    std::vector<at::Tensor> of_rank;
    std::vector<int64_t> num_samples;  ///< Of this step.
    int rank = -1;                     ///< Whose values are in the model.
  };
  struct Gradient {
    NamedTensor here;
    int num_ranks = 1;
    std::vector<std::vector<at::Tensor>> terms;
    std::vector<at::Tensor> of_round = {};  ///< Of a weight that is borrowed `of_same_worker`: one a micro-batch.
  };
  struct Loan {
    BorrowedWeight weight;
    std::vector<at::Tensor> of_round = {};  ///< Gradients of the copy, where it is `of_same_worker`.
  };
  int rank_of(int num_ranks) const { return even_ ? share_ : number_ % microbatches_ % num_ranks; }
  void put_back(Buffer& buffer);
  at::Tensor& term(Gradient& gradient);
  bool waits(const Gradient& gradient) const;
  void end_round();
  void add_as_backward_comes(Gradient& gradient, int num_micro_batches);

  int num_shares_, microbatches_;
  bool even_, exchanges_each_;
  std::vector<Loan> borrowed_;
  BackwardOrder order_;
  std::vector<Gradient> gradients_;
  std::vector<Buffer> buffers_;
  int share_ = 0, number_ = 0;  ///< Of the piece.
};

}  // namespace cohort
