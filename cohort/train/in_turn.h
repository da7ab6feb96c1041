#pragma once
// One process that does in turn what the ranks of a layout do side by side, in the same order of arithmetic: what `cohort verify` holds a
// layout against, bit by bit. A plain loop over shares, by itself: no bucket, no hook, no schedule, no exchange.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "cohort/base/layout.h"
#include "cohort/models/layer_graph.h"
#include "cohort/parallel/parameters.h"

namespace cohort {

/// A tied weight that a stage borrows from another: the layer computes with `copy`, a leaf that is no parameter of the model.
struct BorrowedWeight {
  at::Tensor owner, copy;
};

/// Between begin_piece() and end_piece() the model has the buffers that the rank in question would have, and no gradients; end_step()
/// leaves in `.grad` the sum over ranks, each of which has added up its own pieces first, and in the buffers the ranks' average. One
/// thread; the model must outlive it.
class InTurn {
 public:
  /// `layout` is that of the ranks; its tensor degree does not matter here.
  InTurn(LayerGraph& model, const Layout& layout, std::vector<BorrowedWeight> borrowed);

  /// Pipelines, or data-parallel ranks, that divide the batch.
  int num_shares() const { return num_shares_; }
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
  };
  int rank_of(int num_ranks) const { return even_ ? share_ : number_ % microbatches_ % num_ranks; }
  void put_back(Buffer& buffer);
  at::Tensor& term(Gradient& gradient);
  void give_back_borrowed();

  int num_shares_, microbatches_;
  bool even_, exchanges_each_;
  std::vector<BorrowedWeight> borrowed_;
  std::vector<Gradient> gradients_;
  std::vector<Buffer> buffers_;
  int share_ = 0, number_ = 0;  ///< Of the piece.
};

}  // namespace cohort
