#pragma once
// Internals of ZeroDataParallel, built and exchanged by zero_state.cpp.

#include <torch/csrc/autograd/grad_mode.h>

#include <array>
#include <memory>
#include <vector>

#include "cohort/parallel/strategy/buffer_average.h"
#include "cohort/parallel/watch/backward_watch.h"
#include "cohort/parallel/watch/operator_watch.h"
#include "cohort/parallel/watch/weight_watch.h"
#include "cohort/parallel/zero/zero_data_parallel.h"
#include "cohort/parallel/zero/zero_gather.h"
#include "cohort/parallel/zero/zero_reduce.h"
#include "cohort/parallel/zero/zero_units.h"

namespace cohort {

/// Scope of our own operators: no graph, and no gathering of what they access.
struct Quiet {
  at::NoGradGuard no_grad;
  UnwatchedScope unwatched;
};

/// Location of the gradient of an optimizer's segment.
struct SegmentGradient {
  size_t reduced_unit = 0;  ///< Index among the trained units.
  int parameter = 0;
  int64_t slice_offset = 0, count = 0;
};

/// Location of a parameter.
struct WeightLocation {
  int unit = -1;     ///< -1: not divided.
  SlicePiece piece;  ///< This rank's part.
};

constexpr const char* kHowToStep =
    "under ZeRO no rank has all gradients: step({.clip_norm = 1}) of Parallel applies them, in place of the step() of a torch::optim "
    "optimizer and of clip_grad_norm_(); for other optimizers use layout dp";

/// In the order of construction: what is watched ends before what it uses.
struct ZeroDataParallel::State {
  const torch::nn::Module& module;
  Group group;
  ZeroOptions options;
  std::vector<NamedTensor> all;
  std::vector<ZeroUnit> units;        ///< Divided units: all in stage 3, else the trained ones.
  std::vector<size_t> trained_units;  ///< Reduced unit -> index in `units`.
  int64_t largest_unit_bytes = 0, live_bytes = 0;
  std::unique_ptr<UnitMemory> memory;
  std::unique_ptr<ZeroWeights> weights;
  std::unique_ptr<ZeroReduce> reduce;
  std::unique_ptr<ShardOptimizer> optimizer;
  std::vector<SegmentGradient> segment_gradients;  ///< One per segment of the optimizer.
  std::vector<WeightLocation> location_of;         ///< One per parameter.
  std::unique_ptr<ZeroGather> gather;
  std::unique_ptr<UseWatch> watch;
  std::unique_ptr<BufferAverage> buffers;

  bool sync = true, holds_gradients = false, step_closed = false;
  bool step_begun = false;       ///< Something was exchanged in this step.
  bool step_was_called = false;  ///< Ever.
  int num_dropped = 0;           ///< Steps dropped by zero_grad() before the first step().
  bool step_dropped = false;     ///< By all ranks: abandon_step() has nothing left to do.
  BackwardWatch backward_watch;
  double buffer_share = -1, waited_before = 0;
  std::array<float, DataParallel::kNumControls> controls{}, control_sums{};
  std::vector<uint8_t> used;     ///< Per parameter: by any rank in this step.
  std::vector<uint8_t> dropped;  ///< Per parameter: by this rank's program since the last notes.
  WeightWatch weight_watch{"ZeroDataParallel"};
  ModuleWatch module_watch{module};
  /// Writes of the program since forget_writes(), per parameter.
  std::vector<int64_t> replaced;                   ///< Stage 3: checksums of the values in other memory, else 0.
  std::vector<uint8_t> written, written_anywhere;  ///< On this rank; on any, by the notes of the last pass.
  ExchangeStatistics statistics;

  State(torch::nn::Module& module, Group group, const ZeroOptions& options);
  void plan();
  void broadcast_rest();
  void divide_optimizer();
  void start_gathering();
  bool is_divided(const at::Tensor& tensor) const { return options.stage == 3 || tensor.requires_grad(); }
  void on_gradient(int parameter);
  void close_pass(bool last, bool leaves = false);
  bool exchange_notes(bool last, bool leaves);
  void forget_gradients();
  void notice_drops();
  void drop(int parameter);
  [[noreturn]] void fail_dropped(int parameter) const;
  void check_was_applied();
  void watch_weights();
  void notice_writes();
  void take_over(size_t parameter);
  bool was_written(size_t parameter) const;
  void compare_writes();
  void forget_writes();
  double squared_norm_of_slices(const std::function<bool(const std::string&)>& counts) const;
  double squared_norm_of_all(const std::function<bool(const std::string&)>& counts) const;
  std::vector<FlatPiece> pieces(bool saving);
};

}  // namespace cohort
