// Synchronous data parallelism.
//
// Steps of one exchange, p ranks:
//   1. A post-accumulate hook on each parameter copies its finished gradient to its place in a bucket (scaled where a mean over ranks is
//      asked for) and makes `.grad` an alias of that place.
//   2. A bucket whose gradients are all there is summed over the ranks, asynchronously, while backward goes on. Buckets start in the same
//      order on all ranks, whatever the order of their hooks.
//   3. When backward ends (engine callback) the gradients that did not come are written as zeros, the remaining buckets start, and all are
//      waited for. A gradient that earlier micro-steps left in `.grad` counts as come.
//
// A bucket ends with one number per parameter, 1 where this rank had a gradient: their sum says whether any rank used the parameter. The
// last bucket also carries the control numbers and the sample count. So the exchange of a step is exactly one sum per bucket. The order of
// buckets is the order in which gradients became ready in the first step on rank 0.
//
// Cost: one copy of each gradient, and per bucket one Group::all_reduce_sum. No copy back: `.grad` lies in the bucket.
//
// Source: Li et al. 2020, "PyTorch Distributed" (VLDB 13:12), sections 3.2 and 4.2. Differences: public hooks instead of c10d::Reducer,
// usage flags inside the buckets instead of a separate bitmap exchange, sums in rank order, the mean may be over samples.
#include "cohort/parallel/data_parallel.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>

#include "cohort/base/error.h"
#include "cohort/parallel/agreement.h"
#include "cohort/parallel/buckets.h"
#include "cohort/parallel/buffer_average.h"
#include "cohort/parallel/compressor.h"
#include "cohort/parallel/initial_broadcast.h"
#include "cohort/parallel/ordered_worker.h"
#include "cohort/parallel/parameters.h"
#include "cohort/parallel/staged_exchange.h"
#include "cohort/parallel/tensor_alias.h"

namespace cohort {
namespace {

using Clock = std::chrono::steady_clock;

bool exchanges_in_full_precision(at::ScalarType type) { return type == at::kFloat || type == at::kDouble; }

}  // namespace

struct DataParallel::State {
  struct Bucket {
    at::Tensor flat;  ///< Gradients, usage flags, and in the last bucket control and samples.
    std::vector<int> parameters;
    std::vector<at::Tensor> places;  ///< Aliases of `flat`, one a parameter.
    at::Tensor flags;                ///< Alias: one number a parameter.
    size_t num_missing = 0;
    int64_t num_gradient_elements = 0;  ///< Of `flat`, before the flags.
    std::unique_ptr<Compressor> compressor;
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
  at::Tensor control;        ///< control: controls and samples, in the last bucket or a tensor of its own.
  bool control_is_own = false;
  bool sync = true, in_backward = false, order_learnt = false;
  size_t next_to_start = 0;
  int64_t local_samples = -1;
  double buffer_share = -1;
  std::array<float, kNumControls> control_values{}, control_sums{};
  double total_samples = 0;
  ExchangeStatistics statistics;
  std::unique_ptr<OrderedWorker> worker;  ///< Compresses and exchanges; last, so that it ends first.

  State(torch::nn::Module& module, Group group, DataParallelOptions options);
  void build_buckets(const std::vector<int>& order);
  std::unique_ptr<Compressor> compressor_of(const BucketPlan& plan, size_t index) const;
  std::unique_ptr<Pending> exchange(Bucket& bucket);
  double weight() const;
  void on_gradient(int parameter, const at::Tensor& variable);
  void take_gradient(int parameter, const at::Tensor& variable);
  void start(Bucket& bucket);
  void start_complete_buckets();
  void finish();
  void learn_order();
  std::string bucket_name(const Bucket& bucket) const;
};

namespace {

class GradientHook : public torch::autograd::PostAccumulateGradHook {
 public:
  using Callback = std::function<void(const at::Tensor&)>;
  explicit GradientHook(Callback callback) : callback_(std::move(callback)) {}
  void operator()(const torch::autograd::Variable& variable) override { callback_(variable); }

 private:
  Callback callback_;
};

}  // namespace

DataParallel::State::State(torch::nn::Module& module, Group group_, DataParallelOptions options_)
    : group(std::move(group_)), options(options_) {
  const std::vector<NamedTensor> all = distinct_parameters(module);
  check_same_model(group, all);
  parameters = trained_parameters(all);
  if (options.broadcast_model) broadcast_model(module, group);
  buffers = std::make_unique<BufferAverage>(module, group);
  // What a compressor keeps belongs to a bucket, so those must not change.
  order_learnt = options.compress != "none";
  const bool on_device = std::any_of(parameters.begin(), parameters.end(), [](const NamedTensor& one) { return !one.tensor.is_cpu(); });
  if (on_device && options.compress != "none")
    fail(ErrorCode::kBadInput, "compress=", options.compress,
         " works on gradients in the host's memory; use compress=none with this device");
  const bool through_host =
      std::any_of(parameters.begin(), parameters.end(), [this](const NamedTensor& one) { return !group.exchanges(one.tensor.device()); });
  if ((order_learnt || through_host) && group.size() > 1) worker = std::make_unique<OrderedWorker>();
  // Until the first step shows the true order: the last layer's gradient comes first.
  std::vector<int> order(parameters.size());
  std::iota(order.rbegin(), order.rend(), 0);
  build_buckets(order);
}

void DataParallel::State::build_buckets(const std::vector<int>& order) {
  std::vector<ParameterSize> sizes;
  for (const NamedTensor& parameter : parameters)
    sizes.push_back(
        {parameter.tensor.numel(), static_cast<int>(parameter.tensor.element_size()), static_cast<int>(parameter.tensor.scalar_type())});
  buckets.clear();
  place_of.assign(parameters.size(), {});
  statistics = {};
  const std::vector<BucketPlan> plans = plan_buckets(sizes, order, options.first_bucket_bytes, options.bucket_bytes);
  for (size_t index = 0; index < plans.size(); ++index) {
    const BucketPlan& plan = plans[index];
    const at::Tensor& first = parameters[plan.parameters[0]].tensor;
    const int64_t num_flags = static_cast<int64_t>(plan.parameters.size());
    const bool carries_control = index + 1 == plans.size() && exchanges_in_full_precision(first.scalar_type());
    Bucket bucket;
    // Padded to a multiple of the ranks, so that slices of an ordered sum need no copy.
    const int64_t used = plan.num_elements + num_flags + (carries_control ? kNumControls + 1 : 0), multiple = 16 * group.size();
    const int64_t padded = (used + multiple - 1) / multiple * multiple;
    const at::TensorOptions type = first.options().requires_grad(false);
    bucket.flat = exchanged_zeros(group, padded, type);
    bucket.parameters = plan.parameters;
    for (size_t place = 0; place < plan.parameters.size(); ++place) {
      const at::Tensor& parameter = parameters[plan.parameters[place]].tensor;
      bucket.places.push_back(alias_of(bucket.flat, plan.offsets[place], parameter.sizes()));
      place_of[plan.parameters[place]] = {static_cast<int>(index), static_cast<int>(place)};
    }
    bucket.flags = alias_of(bucket.flat, plan.num_elements, {num_flags});
    if (carries_control) control = alias_of(bucket.flat, plan.num_elements + num_flags, {kNumControls + 1});
    bucket.num_missing = plan.parameters.size();
    bucket.num_gradient_elements = plan.num_elements;
    if (options.compress != "none" && worker && first.scalar_type() == at::kFloat) bucket.compressor = compressor_of(plan, index);
    statistics.bytes += static_cast<int64_t>(bucket.flat.nbytes());
    buckets.push_back(std::move(bucket));
  }
  statistics.num_buckets = static_cast<int>(buckets.size());
  control_is_own = !control.defined() || buckets.empty() || !exchanges_in_full_precision(buckets.back().flat.scalar_type());
  if (control_is_own) control = at::zeros({kNumControls + 1});
  ready.assign(parameters.size(), false);
  arrival.clear();
  next_to_start = 0;
}

std::unique_ptr<Compressor> DataParallel::State::compressor_of(const BucketPlan& plan, size_t index) const {
  CompressedBuffer buffer{concat("bucket-", index), {}};
  for (size_t place = 0; place < plan.parameters.size(); ++place)
    buffer.parts.push_back({plan.offsets[place], parameters[static_cast<size_t>(plan.parameters[place])].tensor.sizes().vec()});
  return make_compressor(options.compress, buffer, plan.num_elements, options.seed);
}

double DataParallel::State::weight() const {
  switch (options.mean) {
    case GradientMean::kRanks:
      return 1.0 / group.size();
    case GradientMean::kSamples:
      if (local_samples < 0) fail(ErrorCode::kBadInput, "DataParallel: mean over samples needs set_local_samples() before backward()");
      return static_cast<double>(local_samples);
    case GradientMean::kSum:
      break;
  }
  return 1.0;
}

std::string DataParallel::State::bucket_name(const Bucket& bucket) const {
  return concat("gradient bucket ", &bucket - buckets.data(), " of ", buckets.size(), " (", parameters[bucket.parameters.front()].name,
                bucket.parameters.size() > 1 ? " ... " + parameters[bucket.parameters.back()].name : "", ", ", bucket.flat.nbytes(),
                " bytes)");
}

void DataParallel::State::on_gradient(int parameter, const at::Tensor& variable) {
  if (!sync) return;
  if (!in_backward) {
    in_backward = true;
    statistics.exposed_seconds = 0;
    torch::autograd::Engine::get_default_engine().queue_callback([this] { finish(); });
  }
  if (ready[parameter])
    fail(ErrorCode::kFailed, "parameter ", parameters[parameter].name,
         " got a second gradient in one backward(), after its exchange may have begun; put all but the last "
         "backward() of a step in a NoSync block");
  take_gradient(parameter, variable);
  start_complete_buckets();
}

/// Copies `.grad` to its place, scaled, and makes `.grad` an alias of it.
void DataParallel::State::take_gradient(int parameter, const at::Tensor& variable) {
  const auto [bucket_index, place_index] = place_of[parameter];
  Bucket& bucket = buckets[bucket_index];
  at::Tensor& place = bucket.places[place_index];
  at::Tensor& gradient = variable.mutable_grad();
  if (gradient.is_sparse()) gradient = gradient.to_dense();
  const double factor = weight();
  if (gradient.data_ptr() != place.data_ptr()) {
    if (factor == 1.0) place.copy_(gradient);
    else at::mul_out(place, gradient, at::Scalar(factor));
    gradient = place;
  } else if (factor != 1.0) {
    gradient.mul_(factor);
  }
  ready[parameter] = true;
  arrival.push_back(parameter);
  --bucket.num_missing;
}

void DataParallel::State::start_complete_buckets() {
  // The last bucket waits for finish(): it carries the control number, and there is nothing left to overlap with.
  while (next_to_start + 1 < buckets.size() && buckets[next_to_start].num_missing == 0) start(buckets[next_to_start]);
}

void DataParallel::State::start(Bucket& bucket) {
  at::NoGradGuard no_grad;
  if (bucket.num_missing == 0) {
    bucket.flags.fill_(1);
  } else {
    for (size_t place = 0; place < bucket.parameters.size(); ++place) {
      const bool here = ready[bucket.parameters[place]];
      bucket.flags[static_cast<int64_t>(place)].fill_(here ? 1 : 0);
      if (!here) bucket.places[place].zero_();
    }
  }
  bucket.pending = exchange(bucket);
  ++next_to_start;
}

std::unique_ptr<Pending> DataParallel::State::exchange(Bucket& bucket) {
  if (!worker) return group.all_reduce_sum(bucket.flat, bucket_name(bucket));
  if (!group.exchanges(bucket.flat.device())) {
    // Through this host's memory. In the worker, so that backward does not wait for the copies.
    return worker->run([this, &bucket, name = bucket_name(bucket)] { all_reduce_sum(group, bucket.flat, name)->wait(); });
  }
  return worker->run([this, &bucket, name = bucket_name(bucket)] {
    at::NoGradGuard no_grad;
    const int64_t num_gradients = bucket.compressor ? bucket.num_gradient_elements : 0;
    if (bucket.compressor) bucket.compressor->all_reduce_sum(group, bucket.flat.narrow(0, 0, num_gradients), name);
    // Flags and counts must arrive as they are.
    group.all_reduce_sum(bucket.flat.narrow(0, num_gradients, bucket.flat.numel() - num_gradients), name + ", flags")->wait();
  });
}

void DataParallel::State::finish() {
  at::NoGradGuard no_grad;
  const auto began = Clock::now();
  in_backward = false;
  for (size_t parameter = 0; parameter < parameters.size(); ++parameter)
    if (!ready[parameter] && parameters[parameter].tensor.grad().defined())
      take_gradient(static_cast<int>(parameter), parameters[parameter].tensor);
  for (int slot = 0; slot < kNumControls; ++slot) control[slot].fill_(control_values[slot]);
  control[kNumControls].fill_(std::max<int64_t>(0, local_samples));
  while (next_to_start < buckets.size()) start(buckets[next_to_start]);
  for (Bucket& bucket : buckets) bucket.pending->wait();
  if (control_is_own) group.all_reduce_sum(control, "the control numbers")->wait();
  statistics.sent_bytes = 0;
  for (const Bucket& bucket : buckets) statistics.sent_bytes += bucket.compressor ? bucket.compressor->sent_bytes() : 0;
  const at::Tensor sums = control.cpu();
  for (int slot = 0; slot < kNumControls; ++slot) control_sums[slot] = sums[slot].item<float>();
  total_samples = sums[kNumControls].item<double>();
  if (options.mean == GradientMean::kSamples) {
    if (total_samples <= 0) fail(ErrorCode::kBadInput, "DataParallel: no rank had any samples in this step");
    for (Bucket& bucket : buckets) bucket.flat.narrow(0, 0, bucket.flags.storage_offset()).div_(total_samples);
  }
  for (Bucket& bucket : buckets) {
    for (size_t place = 0; place < bucket.parameters.size(); ++place) {
      const at::Tensor& parameter = parameters[bucket.parameters[place]].tensor;
      const bool used = bucket.num_missing == 0 || bucket.flags[static_cast<int64_t>(place)].item<float>() > 0;
      parameter.mutable_grad() = used ? bucket.places[place] : at::Tensor();
    }
    bucket.num_missing = bucket.parameters.size();
    bucket.pending.reset();
  }
  double share = buffer_share;
  if (share < 0) share = options.mean == GradientMean::kSamples ? static_cast<double>(local_samples) / total_samples : 1.0 / group.size();
  buffers->average(share);
  if (!order_learnt) learn_order();
  ready.assign(parameters.size(), false);
  arrival.clear();
  next_to_start = 0;
  statistics.exposed_seconds += std::chrono::duration<double>(Clock::now() - began).count();
}

/// After the first step: buckets in the order in which rank 0's gradients came. The gradients just exchanged stay where they are, in the
/// old buckets.
void DataParallel::State::learn_order() {
  order_learnt = true;
  std::vector<int64_t> order(arrival.begin(), arrival.end());
  for (int64_t parameter = static_cast<int64_t>(parameters.size()) - 1; parameter >= 0; --parameter)
    if (!ready[parameter]) order.push_back(parameter);
  at::Tensor shared = at::empty({static_cast<int64_t>(order.size())}, at::kLong);
  std::copy(order.begin(), order.end(), shared.data_ptr<int64_t>());
  group.broadcast(shared, 0, "the order of the buckets");
  const double exposed_kept = statistics.exposed_seconds;
  build_buckets(std::vector<int>(shared.data_ptr<int64_t>(), shared.data_ptr<int64_t>() + shared.numel()));
  statistics.exposed_seconds = exposed_kept;
}

DataParallel::DataParallel(torch::nn::Module& module, Group group, DataParallelOptions options)
    : state_(std::make_unique<State>(module, std::move(group), options)) {
  if (state_->group.size() == 1) return;  // Nothing to exchange: backward() is LibTorch's own.
  for (size_t i = 0; i < state_->parameters.size(); ++i) {
    const NamedTensor& parameter = state_->parameters[i];
    if (torch::autograd::impl::post_acc_grad_hooks(parameter.tensor))
      fail(ErrorCode::kBadInput, "parameter ", parameter.name,
           " already has a post-accumulate hook; a model can be in one DataParallel at a time");
    State* const state = state_.get();
    torch::autograd::impl::set_post_acc_grad_hooks(parameter.tensor, std::make_unique<GradientHook>([state, i](const at::Tensor& variable) {
                                                     at::NoGradGuard no_grad;
                                                     state->on_gradient(static_cast<int>(i), variable);
                                                   }));
  }
}

DataParallel::~DataParallel() {
  if (!state_ || state_->group.size() == 1) return;
  for (const NamedTensor& parameter : state_->parameters) torch::autograd::impl::set_post_acc_grad_hooks(parameter.tensor, nullptr);
}

void DataParallel::set_sync(bool on) { state_->sync = on; }
void DataParallel::set_local_samples(int64_t samples) { state_->local_samples = samples; }
void DataParallel::set_buffer_share(double share) { state_->buffer_share = share; }
void DataParallel::set_control(int slot, float value) {
  state_->control_values.at(static_cast<size_t>(slot)) = value;
  if (state_->group.size() == 1) state_->control_sums[static_cast<size_t>(slot)] = value;
}
float DataParallel::control_sum(int slot) const { return state_->control_sums.at(static_cast<size_t>(slot)); }
const ExchangeStatistics& DataParallel::statistics() const { return state_->statistics; }
Group& DataParallel::group() { return state_->group; }
GradientMean DataParallel::mean() const { return state_->options.mean; }

std::vector<FlatPiece> DataParallel::compressor_state(bool saving) {
  std::vector<FlatPiece> pieces;
  const int64_t rank = state_->group.rank(), size = state_->group.size();
  for (size_t index = 0; index < state_->buckets.size(); ++index) {
    if (!state_->buckets[index].compressor) continue;
    for (const auto& [slot, tensor] : state_->buckets[index].compressor->state()) {
      const std::string name = concat("compress/bucket-", index, "/", slot);
      const at::Tensor flat = tensor.view({-1});
      if (slot == "residual") pieces.push_back({name, flat, {size, flat.numel()}, rank * flat.numel()});
      else if (!saving || rank == 0) pieces.push_back({name, flat, tensor.sizes().vec(), 0});
    }
  }
  return pieces;
}

void DataParallel::exchange_without_backward() {
  if (state_->group.size() == 1) return;
  state_->statistics.exposed_seconds = 0;
  state_->finish();
}

}  // namespace cohort
