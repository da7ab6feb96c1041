#pragma once
// The inside of SharedDataParallel: what shared_data_parallel_state.cpp lays out in shared memory, and shared_data_parallel.cpp does with
// it in a step.

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
#include "cohort/parallel/one_copy/shared_data_parallel.h"
#include "cohort/parallel/strategy/buffer_average.h"
#include "cohort/parallel/watch/backward_watch.h"
#include "cohort/parallel/watch/weight_watch.h"

namespace cohort {

// Lets autograd write gradients straight into memory that the other ranks of this host can read.
//
// LibTorch makes a gradient with its CPU allocator and moves it, uncopied, to `.grad`. While a GradientMemory lives, what the node in front
// of one of its parameters allocates in a backward() of its thread comes from the rank's part of the shared memory instead, where it has
// that parameter's size. The node and not the size tells: a second model of the same shapes, torch::autograd::grad() and other tensors of
// such a size stay where they would be. The node may make something else of the size (its input's gradient): that has a block for a while.
//
// Blocks are used again and again. Who keeps gradients keeps their blocks: there are at most twice as many as parameters, and two, and
// beyond that gradients are made elsewhere and copied (empty_like()), which always finds room. What is idle beyond the parameters' number,
// and two, gives its memory back.
//
// Cost: a thread-local look-up for an allocation of this process; for one that has a parameter's size a look at the node's edges; a mutex
// and a hash look-up for one that is taken.

/// Made and destroyed by the thread that runs backward(). Tensors in its memory may outlive it.
class GradientMemory {
 public:
  /// Sizes below this are not worth it: such gradients are copied.
  static constexpr size_t kSmallestBytes = 4096;

  /// `parameters` must live as long as this does.
  GradientMemory(std::shared_ptr<ShmArena> arena, const std::vector<at::Tensor>& parameters);
  ~GradientMemory();
  GradientMemory(const GradientMemory&) = delete;

  /// A block for a tensor like that parameter, of at least kSmallestBytes, for what backward made elsewhere. Error(kEnvironment) where
  /// memory is short.
  at::Tensor empty_like(const at::Tensor& parameter);
  /// Of all blocks that have memory, in use or waiting to be.
  int64_t bytes() const;

  class Pool;

 private:
  std::shared_ptr<Pool> pool_;
};

/// One rank's page of numbers for the others, followed by its table: for each trained parameter where its gradient lies in the rank's
/// region.
struct alignas(128) SharedRankPage {
  ShmCounter arrived, summed, finished;
  std::atomic<int> num_weight_users{0};  ///< Rank 0's: ranks that still use the weights; the last one gives the memory back.
  double norm_squared = 0;
  bool left = false;      ///< The rank could not make this step.
  uint64_t replaced = 0;  ///< Which parameters its program gave other memory: a checksum, 0 where none.
  float controls[DataParallel::kNumControls] = {};
};

/// Elements [begin, begin + count) of a parameter: one rank's work.
struct OwnShare {
  size_t parameter = 0;
  int64_t begin = 0, count = 0;
};

struct SharedDataParallel::State {
  const torch::nn::Module& module;
  Group group;
  std::shared_ptr<ShmArena> arena;
  std::vector<NamedTensor> all, trained;
  std::vector<OwnShare> shares;  ///< This rank's; segment i of the optimizer is shares[i].
  std::unique_ptr<ShardOptimizer> optimizer;
  std::unique_ptr<GradientMemory> gradient_memory;
  std::unique_ptr<BufferAverage> buffers;
  at::Tensor small_gradients;              ///< Places of gradients below a page, in shared memory.
  std::vector<at::Tensor> small_places;    ///< One a parameter; undefined for large ones.
  std::vector<at::Tensor> held_gradients;  ///< What the table points to, until all have finished.
  uint64_t num_steps = 0;
  int64_t num_elements = 0;  ///< Trained, of the whole model.
  double buffer_share = -1;
  bool arrived = false;
  bool step_was_called = false;  ///< Ever.
  bool has_begun = false;        ///< A backward() since the gradients were forgotten.
  int num_dropped = 0;           ///< Steps whose gradients were dropped before that.
  WeightWatch weight_watch{"SharedDataParallel"};
  ModuleWatch module_watch{module};
  bool step_dropped = false;  ///< All ranks agreed to: abandon_step() has nothing left to do.
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
  std::vector<char> samples;  ///< Of the weights, after the last step.
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
  std::vector<std::byte*> addends(const OwnShare& share) const;
  void add_and_update(double learning_rate, double factor);
  double add_and_measure(const std::function<bool(const std::string&)>& counts);
  StepOutcome agree(double norm_squared, const StepOptions& options, double* factor);
  std::vector<std::byte*> sums;  ///< Of each of this rank's shares, null where no rank has a gradient; for steps in two passes.
};

}  // namespace cohort
