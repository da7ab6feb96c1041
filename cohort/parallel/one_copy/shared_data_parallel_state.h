#pragma once
// The inside of SharedDataParallel: what shared_data_parallel_state.cpp lays out in shared memory, and shared_data_parallel.cpp does with
// it in a step.

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "cohort/comm/shm/shm_arena.h"
#include "cohort/comm/shm/shm_wait.h"
#include "cohort/comm/transport/transport.h"
#include "cohort/parallel/common/buffer_average.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/parallel/one_copy/gradient_memory.h"
#include "cohort/parallel/one_copy/shared_data_parallel.h"
#include "cohort/parallel/watch/backward_watch.h"
#include "cohort/parallel/watch/module_watch.h"
#include "cohort/parallel/watch/weight_watch.h"

namespace cohort {

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
