// The exchange of a step. The algorithm is in data_parallel.cpp.
#include "cohort/parallel/strategy/data_parallel_state.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/parallel/common/staged_exchange.h"

namespace cohort {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kNumControls = DataParallel::kNumControls;
constexpr int kMostModels = 64;
constexpr int64_t kMostSteps = 64;

}  // namespace

/// Whether the program keeps a delivered gradient or a view of one. References to what is still in `.grad` see it change, as in one
/// process.
bool DataParallel::State::is_held(const Bucket& bucket) const {
  bool all_are_gradients = true, some_held = false;
  for (size_t slot = 0; slot < bucket.slots.size(); ++slot) {
    const at::Tensor& alias = bucket.slots[slot];
    const bool is_gradient = parameters[bucket.parameters[slot]].tensor.grad().is_same(alias);
    all_are_gradients &= is_gradient;
    some_held |= !is_gradient && alias.use_count() > 1;
  }
  const size_t own = 1 + bucket.slots.size() + 1 + (bucket.carries_control ? 1 : 0);
  return some_held || (!all_are_gradients && bucket.flat.storage().use_count() > own);
}

/// Called before the first write of an exchange. The storage of gradients kept by the program becomes a copy; the memory itself, which may
/// be shared with other ranks, stays here.
void DataParallel::State::open(Bucket& bucket) {
  if (bucket.is_open) return;
  bucket.is_open = true;
  if (!is_held(bucket)) return;
  at::NoGradGuard no_grad;
  at::Tensor ours = bucket.flat.clone();
  c10::StorageImpl* const held = bucket.flat.storage().unsafeGetStorageImpl();
  c10::StorageImpl* const copied = ours.storage().unsafeGetStorageImpl();
  at::DataPtr memory = held->set_data_ptr(copied->set_data_ptr(at::DataPtr()));
  held->set_nbytes(copied->nbytes());
  copied->set_data_ptr_noswap(std::move(memory));
  bucket.flat = std::move(ours);
  make_slots(bucket);
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

/// Resets the state for the next exchange.
void DataParallel::State::begin_pass() {
  for (Bucket& bucket : buckets) {
    bucket.num_missing = bucket.parameters.size();
    bucket.is_open = false;
    bucket.pending.reset();
  }
  ready.assign(parameters.size(), false);
  arrival.clear();
  next_to_start = 0;
}

/// Called before this rank's gradient is added to `.grad`. A sum over ranks that is still there would be added once per rank.
void DataParallel::State::before_gradient(const at::Tensor& parameter) {
  const c10::TensorImpl* sum = nullptr;
  if (const auto found = index_of.find(parameter.unsafeGetTensorImpl()); found != index_of.end()) {
    sum = std::exchange(sums[found->second], nullptr);
  } else if (const auto frozen = frozen_sums.extract(parameter.unsafeGetTensorImpl())) {
    sum = frozen.mapped();
  }
  at::NoGradGuard no_grad;
  at::Tensor& gradient = parameter.mutable_grad();
  if (options.mean == GradientMean::kSum && gradient.defined() && gradient.unsafeGetTensorImpl() == sum) gradient.mul_(1.0 / group.size());
}

void DataParallel::State::on_gradient(const at::Tensor& variable) {
  if (!sync) {
    if (const auto found = index_of.find(variable.unsafeGetTensorImpl()); found != index_of.end()) has_own[found->second] = 1;
    return;
  }
  if (watch.has_failed()) abandon();  // The others wait in the exchange of the previous backward().
  if (watch.enter()) begin_exchange();
  if (watch.creates_graph())
    fail(ErrorCode::kBadInput, "backward() with create_graph of ", options.name,
         ": DataParallel exchanges the values of gradients, not the graph that leads to them; use torch::autograd::grad(..., "
         "create_graph=true) for the gradient that a loss is made of, and backward() without it for the loss");
  const auto found = index_of.find(variable.unsafeGetTensorImpl());
  if (found == index_of.end()) return;  // Removed during backward().
  const int parameter = found->second;
  if (ready[parameter])
    fail(ErrorCode::kBadInput, "parameter ", parameters[parameter].name,
         " got a second gradient in one backward(), after its exchange may have begun; put all but the last "
         "backward() of a step in a NoSync block");
  take_gradient(parameter, variable);
  start_complete_buckets();
}

/// Moves `.grad` to its slot, scaled. Until the exchange has ended the parameter has none: should backward() fail, no gradient in transit
/// is taken for one of the next step.
void DataParallel::State::take_gradient(int parameter, const at::Tensor& variable) {
  const auto [bucket_index, slot_index] = slot_of[parameter];
  Bucket& bucket = buckets[bucket_index];
  open(bucket);
  at::Tensor& slot = bucket.slots[slot_index];
  at::Tensor& gradient = variable.mutable_grad();
  if (gradient.is_sparse()) gradient = gradient.to_dense();
  const double factor = weight() * gradient_factor;
  if (factor == 0) {
    slot.zero_();  // Without samples the mean is NaN.
  } else if (gradient.data_ptr() == slot.data_ptr()) {
    if (factor != 1.0) gradient.mul_(factor);
  } else if (factor == 1.0) {
    slot.copy_(gradient);
  } else {
    at::mul_out(slot, gradient, at::Scalar(factor));
  }
  gradient = at::Tensor();
  ready[parameter] = true;
  sums[parameter] = nullptr;
  has_own[parameter] = 0;
  arrival.push_back(parameter);
  --bucket.num_missing;
}

void DataParallel::State::start_complete_buckets() {
  // The last bucket waits for finish(): it carries the control numbers, and nothing is left to overlap with.
  while (next_to_start + 1 < buckets.size() && buckets[next_to_start].num_missing == 0) start(buckets[next_to_start]);
}

void DataParallel::State::start(Bucket& bucket) {
  at::NoGradGuard no_grad;
  open(bucket);
  if (bucket.num_missing == 0) {
    bucket.flags.fill_(1);
  } else {
    for (size_t slot = 0; slot < bucket.parameters.size(); ++slot) {
      const bool here = ready[bucket.parameters[slot]];
      bucket.flags[static_cast<int64_t>(slot)].fill_(here ? 1 : 0);
      if (!here) bucket.slots[slot].zero_();
    }
  }
  if (bucket.compressor) clear_gaps(bucket);
  bucket.pending = exchange(bucket);
  ++next_to_start;
}

/// Gaps between slots are compressed too: a non-finite value there would spoil its neighbours for ever.
void DataParallel::State::clear_gaps(Bucket& bucket) {
  for (size_t i = 0; i < bucket.slots.size(); ++i) {
    const int64_t end = bucket.slots[i].storage_offset() + bucket.slots[i].numel();
    const int64_t next = i + 1 < bucket.slots.size() ? bucket.slots[i + 1].storage_offset() : bucket.num_gradient_elements;
    if (next > end) bucket.flat.narrow(0, end, next - end).zero_();
  }
}

std::unique_ptr<Pending> DataParallel::State::exchange(Bucket& bucket) {
  if (!worker) return group.start_all_reduce_sum(bucket.flat, bucket_name(bucket));
  if (!group.exchanges(bucket.flat.device())) {
    // Through host memory, in the worker, so that backward does not wait for the copies.
    return worker->run([this, &bucket, name = bucket_name(bucket)] { start_all_reduce_sum(group, bucket.flat, name)->wait(); });
  }
  return worker->run([this, &bucket, name = bucket_name(bucket)] {
    at::NoGradGuard no_grad;
    const int64_t num_gradients = bucket.compressor ? bucket.num_gradient_elements : 0;
    if (bucket.compressor) {
      bucket.backup.keep(*bucket.compressor);
      bucket.compressor->all_reduce_sum(group, bucket.flat.narrow(0, 0, num_gradients), name);
    }
    // Flags and counts must be exact.
    group.all_reduce_sum(bucket.flat.narrow(0, num_gradients, bucket.flat.numel() - num_gradients), name + ", flags");
  });
}

/// Starts the remaining buckets and waits for the exchange. A rank that `leaves` the step contributes whatever it has.
void DataParallel::State::exchange_rest(bool leaves) {
  if (!control_is_own) open(buckets.back());
  const int model = number % kMostModels, weights = weight_check ? weight_check->next() : 0;
  at::Tensor carried = at::empty({kNumCarried}, at::kDouble);
  double* const carry = carried.data_ptr<double>();
  std::copy(control_values.begin(), control_values.end(), carry);
  carry[kSamples] = static_cast<double>(std::max<int64_t>(0, local_samples));
  carry[kNumLeft] = leaves ? 1 : 0;
  carry[kLeftRanks] = leaves ? group.rank() + 1 : 0;
  const int64_t steps = num_steps % kMostSteps;
  carry[kModel] = model, carry[kModelSquared] = model * model;
  carry[kSteps] = static_cast<double>(steps), carry[kStepsSquared] = static_cast<double>(steps * steps);
  carry[kWeights] = weights, carry[kWeightsSquared] = weights * weights;
  control.copy_(carried);
  while (next_to_start < buckets.size()) start(buckets[next_to_start]);
  for (Bucket& bucket : buckets) bucket.pending->wait();
  if (control_is_own) group.all_reduce_sum(control, "the control numbers");
}

/// All ranks see the same sums, so all drop the step or none. Throws on ranks that made it.
void DataParallel::State::drop_where_a_rank_left() {
  const at::Tensor sums = control.cpu();
  const int64_t num_left = std::llround(sums[kNumLeft].item<double>());
  if (num_left == 0) return;
  restore_compressors();
  begin_pass();
  for (const NamedTensor& parameter : parameters) parameter.tensor.mutable_grad() = at::Tensor();
  step_dropped = true;
  fail_left_step(num_left, std::llround(sums[kLeftRanks].item<double>()) - 1, group.size());
}

/// All ranks see the same sums, so all report a difference or none. q numbers are equal where q times the sum of their squares is the
/// square of their sum.
void DataParallel::State::check_same_on_all_ranks(const at::Tensor& sums) {
  const auto differ = [&](int slot) {
    const double sum = sums[slot].item<double>();
    return sum * sum != group.size() * sums[slot + 1].item<double>();
  };
  if (!differ(kModel) && !differ(kSteps) && !differ(kWeights)) return;
  begin_pass();
  for (const NamedTensor& parameter : parameters) parameter.tensor.mutable_grad() = at::Tensor();
  check_same_text(group, options.name + "\n", "whose gradients are exchanged",
                  "models that train in one job call backward() in the same order on all ranks");
  check_same_text(group, concat(num_steps, " steps\n"), concat("how many steps they have made of ", options.name),
                  "a rank has left a backward() out, or a step; one that has no samples, or drops its batch, must take part all the same "
                  "(Parallel::no_samples(), DataParallel::exchange_without_backward())");
  assert_same_weights(module, group);
  fail(ErrorCode::kFailed, "ranks differ in the weights of ", options.name, ", or did while the gradients were computed");
}

/// Takes part in the others' exchange in place of a step that this rank cannot make, so that all begin the next step together.
void DataParallel::State::abandon() {
  at::NoGradGuard no_grad;
  watch.clear();
  // A `.grad` zeroed in place lies in a bucket and may already hold the first gradient of the next backward().
  std::vector<at::Tensor> kept;
  for (size_t index = next_to_start; index < buckets.size(); ++index) kept.push_back(buckets[index].flat.clone());
  const size_t first_kept = next_to_start;
  exchange_rest(/*leaves=*/true);
  for (size_t i = 0; i < kept.size(); ++i) buckets[first_kept + i].flat.copy_(kept[i]);
  restore_compressors();
  begin_pass();
}

void DataParallel::State::restore_compressors() {
  for (Bucket& bucket : buckets)
    if (bucket.compressor) bucket.backup.restore(*bucket.compressor);
}

void DataParallel::State::finish() {
  at::NoGradGuard no_grad;
  const auto began = Clock::now();
  for (size_t parameter = 0; parameter < parameters.size(); ++parameter)
    if (!ready[parameter] && parameters[parameter].tensor.grad().defined()) {
      before_gradient(parameters[parameter].tensor);
      take_gradient(static_cast<int>(parameter), parameters[parameter].tensor);
    }
  exchange_rest(/*leaves=*/false);
  drop_where_a_rank_left();
  statistics.sent_bytes = 0;
  for (const Bucket& bucket : buckets) statistics.sent_bytes += bucket.compressor ? bucket.compressor->sent_bytes() : 0;
  const at::Tensor sums = control.cpu();
  check_same_on_all_ranks(sums);
  for (int slot = 0; slot < kNumControls; ++slot) control_sums[slot] = sums[slot].item<float>();
  total_samples = sums[kSamples].item<double>();
  if (options.mean == GradientMean::kSamples && total_samples <= 0) {
    begin_pass();
    fail(ErrorCode::kBadInput, "DataParallel: no rank had any samples in this step");
  }
  deliver_gradients();
  double share = buffer_share;
  if (share < 0) share = options.mean == GradientMean::kSamples ? static_cast<double>(local_samples) / total_samples : 1.0 / group.size();
  buffers->average(share);
  statistics.buffer_bytes = buffers->exchanged_bytes();
  if (group.size() > 1 && module_watch.buffers_changed()) {
    buffers = std::make_unique<BufferAverage>(module, group, options.buffers);
    module_watch.remember_buffers();
  }
  ++statistics.num_exchanges;
  if (!order_learnt) learn_order();
  begin_pass();
  statistics.exposed_seconds += seconds_since(began);
}

/// `.grad` becomes an alias of the slot with its sum or mean.
void DataParallel::State::deliver_gradients() {
  for (Bucket& bucket : buckets) {
    if (options.mean == GradientMean::kSamples) bucket.flat.narrow(0, 0, bucket.flags.storage_offset()).div_(total_samples);
    for (size_t slot = 0; slot < bucket.parameters.size(); ++slot) {
      const at::Tensor& parameter = parameters[bucket.parameters[slot]].tensor;
      const bool used = bucket.num_missing == 0 || bucket.flags[static_cast<int64_t>(slot)].item<float>() > 0;
      parameter.mutable_grad() = used ? bucket.slots[slot] : at::Tensor();
      sums[bucket.parameters[slot]] = used ? bucket.slots[slot].unsafeGetTensorImpl() : nullptr;
    }
  }
}

// The thread that exchanges buckets with compression or through the host.

namespace {

class PendingTask : public Pending {
 public:
  explicit PendingTask(std::future<void> done) : done_(std::move(done)) {}
  void wait() override { done_.get(); }

 private:
  std::future<void> done_;
};

}  // namespace

OrderedWorker::OrderedWorker() : thread_([this] { loop(); }) {}

OrderedWorker::~OrderedWorker() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

std::unique_ptr<Pending> OrderedWorker::run(std::function<void()> task) {
  std::packaged_task<void()> packaged(std::move(task));
  auto pending = std::make_unique<PendingTask>(packaged.get_future());
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(packaged));
  }
  changed_.notify_one();
  return pending;
}

void OrderedWorker::loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return closing_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    std::packaged_task<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
}

}  // namespace cohort
