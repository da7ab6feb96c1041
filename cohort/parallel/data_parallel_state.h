#pragma once
// The inside of DataParallel: what data_parallel_state.cpp builds and exchanges, and data_parallel.cpp offers.

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/parallel/backward_watch.h"
#include "cohort/parallel/buckets.h"
#include "cohort/parallel/buffer_average.h"
#include "cohort/parallel/compressor.h"
#include "cohort/parallel/data_parallel.h"
#include "cohort/parallel/ordered_worker.h"
#include "cohort/parallel/parameters.h"

namespace cohort {

struct DataParallel::State {
  struct Bucket {
    at::Tensor flat;  ///< Gradients, usage flags, and in the last bucket control and samples.
    std::vector<int> parameters;
    std::vector<at::Tensor> places;  ///< Aliases of `flat`, one a parameter.
    at::Tensor flags;                ///< Alias: one number a parameter.
    size_t num_missing = 0;
    int64_t num_gradient_elements = 0;  ///< Of `flat`, before the flags.
    std::unique_ptr<Compressor> compressor;
    CompressorBackup backup;  ///< Of what the compressor remembers, from before the last exchange.
    std::unique_ptr<Pending> pending;
  };

  Group group;
  DataParallelOptions options;
  std::vector<NamedTensor> parameters;
  std::unique_ptr<BufferAverage> buffers;
  std::vector<Bucket> buckets;
  std::vector<std::pair<int, int>> place_of;  ///< Parameter -> (bucket, place in it).
  std::vector<bool> ready;
  std::vector<int> arrival;  ///< Parameters in the order of this step's hooks.
  at::Tensor control;        ///< Controls, samples, ranks that left the step; in the last bucket or a tensor of its own.
  bool control_is_own = false;
  bool sync = true, order_learnt = false;
  bool step_dropped = false;  ///< All ranks agreed to: abandon_step() has nothing left to do.
  size_t next_to_start = 0;
  int64_t local_samples = -1;
  double buffer_share = -1, gradient_factor = 1;
  std::array<float, kNumControls> control_values{}, control_sums{};
  double total_samples = 0;
  ExchangeStatistics statistics;
  BackwardWatch watch{[this] { finish(); }};
  std::unique_ptr<OrderedWorker> worker;  ///< Compresses and exchanges; last, so that it ends first.

  State(torch::nn::Module& module, Group group, DataParallelOptions options);
  void build_buckets(const std::vector<int>& order);
  std::unique_ptr<Compressor> compressor_of(const BucketPlan& plan, size_t index) const;
  std::unique_ptr<Pending> exchange(Bucket& bucket);
  double weight() const;
  void on_gradient(int parameter, const at::Tensor& variable);
  void take_gradient(int parameter, const at::Tensor& variable);
  void start(Bucket& bucket);
  static void clear_gaps(Bucket& bucket);
  void start_complete_buckets();
  void finish();
  void abandon();
  void exchange_rest(bool leaves);
  void drop_where_a_rank_left();
  void deliver_gradients();
  void begin_pass();
  void restore_compressors();
  void learn_order();
  std::string bucket_name(const Bucket& bucket) const;
};

}  // namespace cohort
