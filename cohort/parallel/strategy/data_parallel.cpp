// Synchronous data parallelism.
//
// Steps of one exchange, p ranks:
//   1. A post-accumulate hook on each parameter moves its finished gradient to its place in a bucket (scaled where a mean over ranks, or a
//      gradient factor, is asked for).
//   2. A bucket whose gradients are all there is summed over the ranks, asynchronously, while backward goes on. Buckets start in the same
//      order on all ranks, whatever the order of their hooks.
//   3. When backward ends (engine callback) the gradients that did not come are written as zeros, the remaining buckets start, and all are
//      waited for. A gradient that earlier micro-steps left in `.grad` counts as come. `.grad` becomes an alias of its place.
//
// A bucket ends with one number per parameter, 1 where this rank had a gradient: their sum says whether any rank used the parameter. The
// last bucket also carries the control numbers, the sample count, and whether a rank left the step (an exception ended its backward, see
// abandon_step()): then all drop the step, and compressors what they kept of it. So the exchange of a step is exactly one sum per bucket.
// The order of buckets is the order in which gradients became ready in the first step on rank 0.
//
// Cost: one copy of each gradient, and per bucket one Group::all_reduce_sum. No copy back: `.grad` lies in the bucket.
//
// Behind these numbers stand, as sum and sum of squares, which model this is, how many steps were made, and a hash of a few weights
// (agreement.h): where ranks differ all of them see it in the same exchange, and name it together.
//
// The module may change: before each backward() the list of its parameters is compared with what the ranks agreed on (weight_watch.h), and
// where it differs all ranks plan anew in front of the exchange. A bucket whose last gradients somebody still holds changes its memory.
//
// Source: Li et al. 2020, "PyTorch Distributed" (VLDB 13:12), sections 3.2 and 4.2. Differences: public hooks instead of c10d::Reducer,
// usage flags inside the buckets instead of a separate bitmap exchange, sums in rank order, the mean may be over samples.
#include "cohort/parallel/strategy/data_parallel.h"

#include "cohort/base/fail.h"
#include "cohort/parallel/common/agreement.h"
#include "cohort/parallel/strategy/data_parallel_state.h"

namespace cohort {

const char* name_of(BufferPolicy policy) {
  switch (policy) {
    case BufferPolicy::kAverage:
      return "average";
    case BufferPolicy::kBroadcast:
      return "broadcast";
    case BufferPolicy::kNone:
      break;
  }
  return "none";
}

DataParallel::DataParallel(torch::nn::Module& module, Group group, DataParallelOptions options)
    : state_(std::make_unique<State>(module, std::move(group), std::move(options))) {}

DataParallel::~DataParallel() = default;

void DataParallel::adopt_model() {
  State& s = *state_;
  if (s.group.size() == 1) return;
  check_same_model(s.group, distinct_parameters(s.module));
  broadcast_model(s.module, s.group);
  if (s.module_watch.changed()) s.plan_anew();
}

void DataParallel::set_sync(bool on) { state_->sync = on; }
bool DataParallel::is_sync() const { return state_->sync; }
void DataParallel::set_local_samples(int64_t samples) { state_->local_samples = samples; }
void DataParallel::set_gradient_factor(double factor) { state_->gradient_factor = factor; }
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
  if (backward_failed())
    fail(ErrorCode::kFailed, "an exception ended the last backward() of rank ", state_->group.rank(),
         "; call abandon_step() for that step, so that all ranks drop it, and then go on");
  state_->begin_exchange();
  state_->finish();
}

bool DataParallel::backward_failed() const { return state_->watch.has_failed(); }

void DataParallel::abandon_step() {
  if (state_->group.size() == 1) return;
  if (!state_->step_dropped) state_->abandon();
  state_->step_dropped = false;
  for (const NamedTensor& parameter : state_->parameters) parameter.tensor.mutable_grad() = at::Tensor();
}

void DataParallel::count_step() { ++state_->num_steps; }

void DataParallel::forget_exchange() { state_->restore_compressors(); }

}  // namespace cohort
