#pragma once
// Internals of DataParallel: data_parallel.cpp plans, data_parallel_state.cpp exchanges.

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/parallel/common/agreement.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/parallel/compress/compressor.h"
#include "cohort/parallel/strategy/buffer_average.h"
#include "cohort/parallel/strategy/data_parallel.h"
#include "cohort/parallel/watch/backward_watch.h"
#include "cohort/parallel/watch/weight_watch.h"

namespace cohort {

// Assignment of gradients to buckets. Pure arithmetic, no tensors.

struct ParameterSize {
  int64_t num_elements = 0;
  int element_bytes = 4;
  int kind = 0;  ///< Parameters of different kinds (types) never share a bucket.
};

struct BucketPlan {
  std::vector<int> parameters;   ///< Indices, in the order of their slots in the bucket.
  std::vector<int64_t> offsets;  ///< In elements; slots begin at multiples of 64 bytes.
  int64_t num_elements = 0;      ///< Of all slots, with padding.
};

/// Groups parameters in the order `order`, in which their gradients become ready. A bucket is closed when the next gradient would exceed
/// `bucket_bytes`, the first at `first_bucket_bytes`, so that the exchange starts early. A larger gradient has a bucket of its own.
std::vector<BucketPlan> plan_buckets(const std::vector<ParameterSize>& sizes, const std::vector<int>& order, int64_t first_bucket_bytes,
                                     int64_t bucket_bytes);

// A thread that runs tasks in order, for exchanges beside backward.

/// Used by one thread. The destructor runs remaining tasks, which end within the group's time-out.
class OrderedWorker {
 public:
  OrderedWorker();
  ~OrderedWorker();
  OrderedWorker(const OrderedWorker&) = delete;

  /// wait() of the result returns when the task has ended, and throws what it threw.
  std::unique_ptr<Pending> run(std::function<void()> task);

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<void()>> tasks_;
  bool closing_ = false;
  std::thread thread_;
};

struct DataParallel::State {
  /// Values in the last bucket after the controls. For ranks that left the step: their number, and the sum of their ranks + 1, which
  /// identifies a single one. For what must be equal on all ranks (small integers): its sum, and that of its squares.
  enum Carried {
    kSamples = kNumControls,
    kNumLeft,
    kLeftRanks,
    kModel,
    kModelSquared,
    kSteps,
    kStepsSquared,
    kWeights,
    kWeightsSquared,
    kNumCarried
  };
  struct Bucket {
    at::Tensor flat;  ///< Gradients, usage flags, and in the last bucket controls and samples.
    std::vector<int> parameters;
    std::vector<int64_t> offsets;   ///< Of their slots.
    std::vector<at::Tensor> slots;  ///< Aliases of `flat`, one per parameter.
    at::Tensor flags;               ///< Alias: one number per parameter.
    size_t num_missing = 0;
    bool is_open = false;               ///< This exchange may write to it.
    int64_t num_gradient_elements = 0;  ///< In `flat`, before the flags.
    bool carries_control = false;       ///< Behind the flags.
    std::unique_ptr<Compressor> compressor;
    CompressorBackup backup;  ///< Compressor state before the last exchange.
    std::unique_ptr<Pending> pending;
  };

  torch::nn::Module& module;
  Group group;
  DataParallelOptions options;
  int number = 0;  ///< Of this one within the group.
  ModuleWatch module_watch;
  std::vector<NamedTensor> parameters;
  std::unordered_map<const c10::TensorImpl*, int> index_of;
  std::unordered_map<const c10::TensorImpl*, NamedTensor> hooked;  ///< Parameters with our hooks, including later ones.
  /// Per parameter the exchanged gradient, until something of this rank's is added; valid while it is in `.grad`.
  std::vector<const c10::TensorImpl*> sums;
  std::unordered_map<const c10::TensorImpl*, const c10::TensorImpl*> frozen_sums;  ///< The same for frozen parameters.
  std::vector<uint8_t> has_own;                                ///< Per parameter: micro-steps have left a gradient to be exchanged.
  std::vector<std::pair<at::Tensor, unsigned>> arrival_hooks;  ///< For GradientMean::kSum.
  std::unique_ptr<WeightCheck> weight_check;
  std::unique_ptr<BufferAverage> buffers;
  std::vector<Bucket> buckets;
  std::vector<std::pair<int, int>> slot_of;  ///< Parameter -> (bucket, slot).
  std::vector<bool> ready;
  std::vector<int> arrival;  ///< Parameters in the order of this step's hooks.
  at::Tensor control;        ///< See Carried; in the last bucket or a tensor of its own.
  bool control_is_own = false;
  bool sync = true, order_learnt = false;
  bool hooks_differ = false;  ///< The hooked parameters differ from those agreed on.
  bool step_dropped = false;  ///< By all ranks: abandon_step() has nothing left to do.
  size_t next_to_start = 0;
  int64_t local_samples = -1;
  int64_t num_steps = 0;  ///< Counted by count_step().
  double buffer_share = -1, gradient_factor = 1;
  std::array<float, kNumControls> control_values{}, control_sums{};
  double total_samples = 0;
  ExchangeStatistics statistics;
  BackwardWatch watch{{.at_end = [this] { finish(); }, .at_begin = [this](const auto&) { see_module(); }}};
  std::unique_ptr<OrderedWorker> worker;  ///< Compresses and exchanges; last, so that it ends first.

  State(torch::nn::Module& module, Group group, DataParallelOptions options);
  ~State();
  std::string description() const;
  void plan(const std::vector<NamedTensor>& all);
  void see_module();
  void plan_anew();
  void refuse_frozen_with_own();
  void begin_exchange();
  void build_buckets(const std::vector<int>& order);
  void hook_all();
  void make_slots(Bucket& bucket);
  bool is_held(const Bucket& bucket) const;
  void open(Bucket& bucket);
  std::unique_ptr<Compressor> compressor_of(const BucketPlan& plan, size_t index) const;
  std::unique_ptr<Pending> exchange(Bucket& bucket);
  double weight() const;
  void before_gradient(const at::Tensor& parameter);
  void on_gradient(const at::Tensor& variable);
  void take_gradient(int parameter, const at::Tensor& variable);
  void start(Bucket& bucket);
  static void clear_gaps(Bucket& bucket);
  void start_complete_buckets();
  void finish();
  void abandon();
  void exchange_rest(bool leaves);
  void check_same_on_all_ranks(const at::Tensor& sums);
  void drop_where_a_rank_left();
  void deliver_gradients();
  void begin_pass();
  void restore_compressors();
  void learn_order();
  std::string bucket_name(const Bucket& bucket) const;
};

}  // namespace cohort
