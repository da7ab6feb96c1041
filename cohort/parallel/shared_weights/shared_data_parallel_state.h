#pragma once
// Internals of SharedDataParallel: shared_data_parallel_state.cpp lays out shared memory, shared_data_parallel.cpp runs steps.

#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cohort/comm/shm/shm_arena.h"
#include "cohort/comm/shm/shm_wait.h"
#include "cohort/comm/transport/transport.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/parallel/shared_weights/shared_data_parallel.h"
#include "cohort/parallel/strategy/buffer_average.h"
#include "cohort/parallel/watch/backward_watch.h"
#include "cohort/parallel/watch/weight_watch.h"

namespace cohort {

// Lets autograd write gradients directly into memory that the other ranks of this host can read.
//
// LibTorch allocates a gradient with its CPU allocator and moves it to `.grad`. While a GradientMemory lives, allocations of a parameter's
// size by the node in front of that parameter, in a backward() of its thread, come from shared memory. The node is decisive, not the size:
// a second model of the same shapes, torch::autograd::grad() and other tensors of that size are unaffected. The node may also allocate its
// input's gradient of that size, which occupies a block for a while.
//
// Blocks are reused. A program that keeps gradients keeps their blocks: at most twice as many as parameters, plus two; further gradients
// are allocated elsewhere and copied (empty_like()). Idle blocks beyond the number of parameters plus two release their memory.
//
// Cost: a thread-local look-up per allocation; for one of a parameter's size a look at the node's edges; a mutex and a hash look-up for one
// that is used.

/// Created and destroyed by the thread that runs backward(). Tensors in its memory may outlive it.
class GradientMemory {
 public:
  /// Smaller gradients are copied.
  static constexpr size_t kSmallestBytes = 4096;

  /// `parameters` must outlive this.
  GradientMemory(std::shared_ptr<ShmArena> arena, const std::vector<at::Tensor>& parameters);
  ~GradientMemory();
  GradientMemory(const GradientMemory&) = delete;

  /// A block like `parameter` (at least kSmallestBytes), for gradients that were allocated elsewhere. Error(kEnvironment) where memory is
  /// short.
  at::Tensor empty_like(const at::Tensor& parameter);
  /// Bytes of all blocks, in use or idle.
  int64_t bytes() const;

  class Pool;

 private:
  std::shared_ptr<Pool> pool_;
};

/// A rank's page of shared numbers, followed by its table: the offset of each trained parameter's gradient in the rank's region.
struct alignas(128) SharedRankPage {
  ShmCounter arrived, summed, finished;
  std::atomic<int> num_weight_users{0};  ///< Rank 0's: ranks that still use the weights; the last one frees them.
  double norm_squared = 0;
  bool left = false;      ///< The rank abandoned this step.
  uint64_t replaced = 0;  ///< Checksum of the parameters that got other memory; 0: none.
  float controls[DataParallel::kNumControls] = {};
};

/// Elements [begin, begin + count) of a parameter: one rank's slice.
struct OwnSlice {
  size_t parameter = 0;
  int64_t begin = 0, count = 0;
};

struct SharedDataParallel::State {
  const torch::nn::Module& module;
  Group group;
  std::shared_ptr<ShmArena> arena;
  std::vector<NamedTensor> all, trained;
  std::vector<OwnSlice> slices;  ///< This rank's; segment i of the optimizer is slices[i].
  std::unique_ptr<ShardOptimizer> optimizer;
  std::unique_ptr<GradientMemory> gradient_memory;
  std::unique_ptr<BufferAverage> buffers;
  at::Tensor small_gradients;              ///< Small gradients, in shared memory.
  std::vector<at::Tensor> small_places;    ///< One per parameter; undefined for large ones.
  std::vector<at::Tensor> held_gradients;  ///< Referenced by the table until all ranks have finished.
  uint64_t num_steps = 0;
  int64_t num_elements = 0;  ///< Trained elements of the model.
  double buffer_share = -1;
  bool arrived = false;
  bool step_was_called = false;  ///< Ever.
  bool has_begun = false;        ///< backward() was called since forget_gradients().
  int num_dropped = 0;           ///< Dropped steps before the first step().
  WeightWatch weight_watch{"SharedDataParallel"};
  ModuleWatch module_watch{module};
  bool step_dropped = false;  ///< By all ranks: abandon_step() has nothing left to do.
  BackwardWatch watch{{}};
  std::array<float, DataParallel::kNumControls> controls{}, control_sums{};
  ExchangeStatistics statistics;

  State(torch::nn::Module& module, Group group, const SharedDataParallelOptions& options);
  void share_weights();
  void divide(const UpdateRule& rule);
  void place_small_gradients();
  SharedRankPage& page(int rank) const { return *reinterpret_cast<SharedRankPage*>(arena->region(rank) + page_offset); }
  uint64_t* table(int rank) const { return reinterpret_cast<uint64_t*>(arena->region(rank) + page_offset + sizeof(SharedRankPage)); }
  size_t page_offset = 0;

  void check_weights() const;
  std::vector<char> samples;  ///< Sampled weights after the last step.
  std::vector<char> sample_weights() const;
  void remember_weights();
  void check_samples() const;
  void begin_backward(const at::Tensor& first);
  void note_dropped();
  uint64_t replaced_parameters() const;
  void copy_replaced();
  void take_over();
  void forget_gradients();
  bool has_gradients() const;
  void write_table();
  bool may_be_read_in_place(const at::Tensor& gradient) const;
  void arrive();
  void meet(bool leaves);
  void wait_all(ShmCounter SharedRankPage::* counter, Op op, int64_t count, const char* what);
  std::vector<std::byte*> addends(const OwnSlice& slice) const;
  void add_and_update(double learning_rate, double factor);
  double add_and_measure(const std::function<bool(const std::string&)>& counts);
  StepOutcome agree(double norm_squared, const StepOptions& options, double* factor);
  std::vector<std::byte*> sums;  ///< Per slice, null without a gradient; for steps in two passes.
};

}  // namespace cohort
