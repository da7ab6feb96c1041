#pragma once
// The inside of DataParallel: what data_parallel.cpp builds and offers, and data_parallel_state.cpp exchanges.

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

// Which parameters' gradients travel together. Pure arithmetic, no tensors.

struct ParameterSize {
  int64_t num_elements = 0;
  int element_bytes = 4;
  int kind = 0;  ///< Parameters of different kind (dtype) never share a bucket.
};

struct BucketPlan {
  std::vector<int> parameters;   ///< Indices, in the order of their places in the bucket.
  std::vector<int64_t> offsets;  ///< In elements; places begin at multiples of 64 bytes.
  int64_t num_elements = 0;      ///< Of all places, padding included.
};

/// Groups parameters in the order `order` (that in which their gradients become ready): a bucket is closed when the next gradient would
/// lift it over `bucket_bytes`; the first is closed at `first_bucket_bytes`, so that the exchange starts early. A gradient larger than the
/// limit is alone.
std::vector<BucketPlan> plan_buckets(const std::vector<ParameterSize>& sizes, const std::vector<int>& order, int64_t first_bucket_bytes,
                                     int64_t bucket_bytes);

// A thread that runs tasks in the order in which they were given: what exchanges gradients while backward goes on.

/// Given tasks by one thread. The destructor runs what is left (tasks end or throw within the group's time-out).
class OrderedWorker {
 public:
  OrderedWorker();
  ~OrderedWorker();
  OrderedWorker(const OrderedWorker&) = delete;

  /// wait() of the result ends when the task has, and throws what it threw.
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
  /// What the last bucket carries behind the controls. Of ranks that left the step: their number, and the sum of their ranks + 1, which
  /// names one that is alone. Of what must be the same on all ranks (small whole numbers): its sum, and that of its squares.
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
    at::Tensor flat;  ///< Gradients, usage flags, and in the last bucket control and samples.
    std::vector<int> parameters;
    std::vector<int64_t> offsets;    ///< Of their places.
    std::vector<at::Tensor> places;  ///< Aliases of `flat`, one a parameter.
    at::Tensor flags;                ///< Alias: one number a parameter.
    size_t num_missing = 0;
    bool is_open = false;               ///< This exchange may write to it: nobody else holds what is there.
    int64_t num_gradient_elements = 0;  ///< Of `flat`, before the flags.
    bool carries_control = false;       ///< Behind the flags.
    std::unique_ptr<Compressor> compressor;
    CompressorBackup backup;  ///< Of what the compressor remembers, from before the last exchange.
    std::unique_ptr<Pending> pending;
  };

  torch::nn::Module& module;
  Group group;
  DataParallelOptions options;
  int number = 0;  ///< Of this one among those of the group.
  ModuleWatch module_watch;
  std::vector<NamedTensor> parameters;
  std::unordered_map<const c10::TensorImpl*, int> index_of;
  std::unordered_map<const c10::TensorImpl*, NamedTensor> hooked;  ///< What has our hooks: `parameters`, and what came since.
  /// One a parameter: the tensor of what was exchanged last, until something of this rank's is added; it counts while it is in `.grad`.
  std::vector<const c10::TensorImpl*> sums;
  std::unordered_map<const c10::TensorImpl*, const c10::TensorImpl*>
      frozen_sums;               ///< The same of parameters that are frozen at the moment.
  std::vector<uint8_t> has_own;  ///< One a parameter: micro-steps have left a gradient there that waits for its exchange.
  std::vector<std::pair<at::Tensor, unsigned>> arrival_hooks;  ///< For GradientMean::kSum.
  std::unique_ptr<WeightCheck> weight_check;
  std::unique_ptr<BufferAverage> buffers;
  std::vector<Bucket> buckets;
  std::vector<std::pair<int, int>> place_of;  ///< Parameter -> (bucket, place in it).
  std::vector<bool> ready;
  std::vector<int> arrival;  ///< Parameters in the order of this step's hooks.
  at::Tensor control;        ///< Controls, samples, ranks that left the step; in the last bucket or a tensor of its own.
  bool control_is_own = false;
  bool sync = true, order_learnt = false;
  bool hooks_differ = false;  ///< Hooks are on what is trained, and that is not what the ranks agreed on.
  bool step_dropped = false;  ///< All ranks agreed to: abandon_step() has nothing left to do.
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
  void make_places(Bucket& bucket);
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
