#pragma once
// One process that runs the micro-batches of all ranks of a layout sequentially, in the same order of arithmetic: the bitwise reference of
// `cohort verify`. It is a plain loop without buckets, hooks, schedules or exchanges.

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

/// A tied weight that a stage borrows from another one. Its layer computes with `copy`, a leaf that is not a parameter of the model.
struct BorrowedWeight {
  at::Tensor owner, copy;
  int owner_stage = 0, stage = 0;
  /// One worker runs both stages and has one tensor, to which each stage adds a micro-batch's gradient in its backward. Otherwise the
  /// borrower returns the sum over a round of micro-batches at the end of the round.
  bool of_same_worker = false;
};

/// The (stage, micro-batch) pairs of a round in the order in which a worker adds weight gradients.
using BackwardOrder = std::function<std::vector<std::pair<int, int>>(int num_micro_batches)>;

/// Adds a term that may be undefined to a sum that may be undefined.
void add_defined(at::Tensor& sum, const at::Tensor& term);

/// While a micro-batch runs, the model has the buffers of its rank and no gradients. end_step() leaves in `.grad` the sum over ranks of
/// each rank's own sum, and in the buffers the ranks' average. One thread; the model must outlive it.
class SequentialRanks {
 public:
  /// The tensor degree of the ranks' `layout` is ignored. `order` is needed where a weight is borrowed `of_same_worker`; all pipelines
  /// share it.
  SequentialRanks(LayerGraph& model, const Layout& layout, std::vector<BorrowedWeight> borrowed, BackwardOrder order = {});

  /// Pipelines, or data-parallel ranks, that divide the batch.
  int num_shares() const { return num_shares_; }
  /// Runs a step: calls `compute` for each non-empty micro-batch, whose samples begin at `offset` of the batch.
  void step(const LoadedBatch& batch, const std::function<void(const Share& piece, int64_t offset)>& compute);
  void begin_step();
  /// Micro-step `number` of a share. The micro-batches of a share follow one another.
  void begin_piece(int share, int number, int64_t num_samples);
  void end_piece();
  void end_step(int64_t num_samples);

 private:
  /// A buffer with the values of each rank, and a gradient with its terms[k][rank], which are added over ranks first and then over k.
  struct Buffer {
    NamedTensor here;
    at::Tensor before;  ///< Its value before the step.
    std::vector<at::Tensor> of_rank;
    std::vector<int64_t> num_samples;  ///< Samples of each rank in this step.
    int rank = -1;                     ///< The rank whose values are in the model.
  };
  struct Gradient {
    NamedTensor here;
    int num_ranks = 1;
    std::vector<std::vector<at::Tensor>> terms;
    std::vector<at::Tensor> of_round = {};  ///< One a micro-batch, for a weight borrowed `of_same_worker`.
  };
  struct Loan {
    BorrowedWeight weight;
    std::vector<at::Tensor> of_round = {};  ///< Gradients of the copy, where it is borrowed `of_same_worker`.
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
  int share_ = 0, number_ = 0;  ///< Share and number of the current micro-batch.
};

}  // namespace cohort
