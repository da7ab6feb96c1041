#pragma once
// The optimizer of the parameter segments that one rank updates: whole parameters, or consecutive elements where the work is divided
// between ranks.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/parallel/common/flat_piece.h"
#include "cohort/parallel/optimizer/update.h"

namespace cohort {

/// Consecutive elements of one parameter that this rank updates.
struct Segment {
  std::string parameter;       ///< Name
  std::vector<int64_t> shape;  ///< and shape of the whole parameter.
  int64_t begin = 0;           ///< First element, row-major.
  at::Tensor weights;          ///< 1-d alias of [begin, begin + n) of the parameter. Float or double.
};

/// One thread. Refuses weights of type half or bfloat16: train them in fp32 with autocast.
class COHORT_API ShardOptimizer {
 public:
  /// Error(kBadInput) naming the parameter where its type cannot be updated.
  ShardOptimizer(UpdateRule rule, std::vector<Segment> segments);

  size_t size() const { return segments_.size(); }
  const Segment& segment(size_t index) const { return segments_[index].segment; }
  /// Counts an update of a segment; call before its update() calls of a step, which may come in tiles.
  void begin_update(size_t index) { ++segments_[index].num_updates; }
  /// Applies the rule to elements [offset, offset + count) of a segment; `gradient` has the weights' type and points to the first of them.
  void update(size_t index, int64_t offset, int64_t count, const void* gradient, double learning_rate, double gradient_factor) const;
  /// Updates a segment with the sum, in this order, of several such gradients.
  void update_by_sum(size_t index, const std::vector<std::byte*>& gradients, double learning_rate, double gradient_factor) const;
  /// Updates a segment with a contiguous gradient of its size: with at::get_num_threads() threads, or LibTorch's fused kernels on other
  /// devices.
  void update(size_t index, const at::Tensor& gradient, double learning_rate, double gradient_factor);

  /// From the next update on, weights of the segment that are zero stay zero, and their state too: they are pruned.
  void keep_zeros(size_t index) { segments_[index].keeps_zeros = true; }
  /// Prunes more weights in updates until the next call: elements whose byte in `keep` ({n}, on the weights' device) is 0 become zero;
  /// undefined: none.
  void prune(size_t index, at::Tensor keep) { segments_[index].keep = std::move(keep); }

  /// State for checkpoints: "optimizer/PARAMETER/SLOT", and the number of updates (adam, adamw) as scalar "optimizer/PARAMETER/step"
  /// (Float), saved by the rank with the parameter's first element (`saving`) and read by all ranks with a segment of it. Call
  /// load_counts() after reading.
  std::vector<FlatPiece> state(bool saving);
  void load_counts();
  int64_t state_bytes() const;

 private:
  void update_range(size_t index, int64_t offset, int64_t count, const std::vector<const void*>& gradients, double learning_rate,
                    double gradient_factor) const;
  void update_on_device(size_t index, const at::Tensor& gradient, double learning_rate, double gradient_factor);

  struct Held {
    Segment segment;
    std::vector<at::Tensor> slots;
    int64_t num_updates = 0;
    at::Tensor step;  ///< num_updates for checkpoints.
    bool keeps_zeros = false;
    at::Tensor keep;  ///< See prune().
  };
  void apply_on_device(const Held& held, const at::Tensor& gradient, double learning_rate, double gradient_factor) const;

  UpdateRule rule_;
  std::vector<Held> segments_;
};

}  // namespace cohort
