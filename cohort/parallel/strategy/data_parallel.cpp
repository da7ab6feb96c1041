// Synchronous data parallelism.
//
// Steps of one exchange, p ranks:
//   1. A post-accumulate hook on each parameter moves its finished gradient to its slot in a bucket (scaled where a mean over ranks, or a
//      gradient factor, is asked for).
//   2. A bucket whose gradients are all there is summed over the ranks, asynchronously, while backward runs. Buckets start in the same
//      order on all ranks, whatever the order of their hooks.
//   3. When backward ends (engine callback) missing gradients are written as zeros, the remaining buckets start, and all are
//      waited for. A gradient that earlier micro-steps left in `.grad` counts as present. `.grad` becomes an alias of its slot.
//
// A bucket ends with one number per parameter, 1 where this rank had a gradient: their sum says whether any rank used the parameter. The
// last bucket also carries the control numbers, the sample count, and whether a rank left the step (an exception ended its backward, see
// abandon_step()): then all drop the step, and compressors what they kept of it. So the exchange of a step is exactly one sum per bucket.
// The order of buckets is the order in which gradients became ready in the first step on rank 0.
//
// Cost: one copy of each gradient, and per bucket one Group::all_reduce_sum. No copy back: `.grad` lies in the bucket.
//
// They are followed, as sum and sum of squares, by the number of the model, the number of steps, and a hash of a few weights (agreement.h):
// where ranks differ all of them see it in the same exchange and report it together.
//
// The module may change: before each backward() its parameters are compared with what the ranks agreed on (weight_watch.h); where they
// differ all ranks plan anew before the exchange. A bucket whose last gradients the program still holds gets other memory.
//
// Source: Li et al. 2020, "PyTorch Distributed" (VLDB 13:12), sections 3.2 and 4.2. Differences: public hooks instead of c10d::Reducer,
// usage flags inside the buckets instead of a separate bitmap exchange, sums in rank order, the mean may be over samples.
#include "cohort/parallel/strategy/data_parallel.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>

#include "cohort/base/fail.h"
#include "cohort/comm/group_internals.h"
#include "cohort/parallel/common/agreement.h"
#include "cohort/parallel/common/staged_exchange.h"
#include "cohort/parallel/strategy/data_parallel_state.h"
#include "cohort/parallel/watch/backward_watch.h"

namespace cohort {

const char* name_of(BufferPolicy policy) {
  static constexpr const char* kNames[] = {"average", "broadcast", "none"};
  return kNames[static_cast<size_t>(policy)];
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

namespace {

bool exchanges_in_full_precision(at::ScalarType type) { return type == at::kFloat || type == at::kDouble; }

const char* name_of(GradientMean mean) {
  return mean == GradientMean::kRanks ? "mean over ranks" : mean == GradientMean::kSamples ? "mean over samples" : "sum";
}

}  // namespace

DataParallel::State::State(torch::nn::Module& module_, Group group_, DataParallelOptions options_)
    : module(module_),
      group(std::move(group_)),
      options(std::move(options_)),
      number(GroupInternals::next_number(group)),
      module_watch(module) {
  if (options.name.empty()) options.name = concat("model ", number);
  check_same_text(group, description(), "the options of DataParallel", "give all ranks the same, in the same order of models");
  const std::vector<NamedTensor> all = distinct_parameters(module);
  check_same_model(group, all);
  check_forward_writes(module, group.size());
  if (options.broadcast_model) broadcast_model(module, group);
  // The state of a compressor belongs to a bucket, so buckets must not change.
  order_learnt = options.compress != "none";
  plan(all);
}

DataParallel::State::~State() {
  for (auto& [tensor, position] : arrival_hooks) tensor.remove_hook(position);
  for (const auto& [address, parameter] : hooked) remove_gradient_hook(parameter);
}

std::string DataParallel::State::description() const {
  return concat(options.name, ": ", name_of(options.mean), ", buckets of ", options.first_bucket_bytes, " and ", options.bucket_bytes,
                " bytes, compress=", options.compress, ", buffers ", cohort::name_of(options.buffers), ", check_weights ",
                options.check_weights, "\n");
}

/// Plans the exchange of the module's present parameters.
void DataParallel::State::plan(const std::vector<NamedTensor>& all) {
  auto sums_before = std::move(frozen_sums);
  for (size_t i = 0; i < parameters.size(); ++i)
    if (sums[i]) sums_before[parameters[i].tensor.unsafeGetTensorImpl()] = sums[i];
  parameters = trained_parameters(all);
  module_watch.remember();
  index_of.clear();
  sums.assign(parameters.size(), nullptr);
  has_own.assign(parameters.size(), 0);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const c10::TensorImpl* const address = parameters[i].tensor.unsafeGetTensorImpl();
    index_of[address] = static_cast<int>(i);
    if (const auto kept = sums_before.extract(address)) sums[i] = kept.mapped();
  }
  frozen_sums.clear();
  for (const NamedTensor& one : all)
    if (auto kept = sums_before.extract(one.tensor.unsafeGetTensorImpl())) frozen_sums.insert(std::move(kept));
  buffers = std::make_unique<BufferAverage>(module, group, options.buffers);
  weight_check = options.check_weights && group.size() > 1 ? std::make_unique<WeightCheck>(group, parameters) : nullptr;
  const bool on_device = std::any_of(parameters.begin(), parameters.end(), [](const NamedTensor& one) { return !one.tensor.is_cpu(); });
  if (on_device && options.compress != "none")
    fail(ErrorCode::kBadInput, "compress=", options.compress,
         " works on gradients in the host's memory; use compress=none with this device");
  const bool through_host =
      std::any_of(parameters.begin(), parameters.end(), [this](const NamedTensor& one) { return !group.exchanges(one.tensor.device()); });
  if ((options.compress != "none" || through_host) && group.size() > 1 && !worker) worker = std::make_unique<OrderedWorker>();
  // Until the first step shows the true order: the last layer's gradient comes first.
  std::vector<int> order(parameters.size());
  std::iota(order.rbegin(), order.rend(), 0);
  build_buckets(order);
  if (group.size() > 1) hook_all();  // Last: a later failure would leave hooks behind.
  hooks_differ = false;
}

/// Sets hooks on all trained parameters and removes others.
void DataParallel::State::hook_all() {
  const std::vector<NamedTensor> trained = trained_parameters(distinct_parameters(module));
  for (const NamedTensor& parameter : trained)
    if (!hooked.contains(parameter.tensor.unsafeGetTensorImpl())) check_no_gradient_hook(parameter);
  std::unordered_map<const c10::TensorImpl*, NamedTensor> before;
  std::swap(before, hooked);
  for (auto& [tensor, position] : arrival_hooks) tensor.remove_hook(position);
  arrival_hooks.clear();
  for (const NamedTensor& parameter : trained) {
    const c10::TensorImpl* const address = parameter.tensor.unsafeGetTensorImpl();
    if (before.erase(address) == 0) set_gradient_hook(parameter, [this](const at::Tensor& variable) { on_gradient(variable); });
    hooked[address] = parameter;
    if (options.mean == GradientMean::kSum) {
      // torch::autograd::grad() runs it too, without adding to `.grad`.
      const auto position = parameter.tensor.register_hook([this, address](const at::Tensor&) {
        if (watch.is_accumulating()) before_gradient(hooked.at(address).tensor);
      });
      arrival_hooks.emplace_back(parameter.tensor, position);
    }
  }
  // NOLINTNEXTLINE(bugprone-nondeterministic-pointer-iteration-order)
  for (const auto& [address, parameter] : before) remove_gradient_hook(parameter);
}

/// Called before each backward(): sets hooks on new parameters.
void DataParallel::State::see_module() {
  if (group.size() == 1 || !sync) return;
  const bool changed = module_watch.changed();
  if (changed || hooks_differ) hook_all();  // Also where it is as before: a model may be frozen for another one's backward().
  hooks_differ = changed;
}

/// The module's parameters differ from those agreed on. Collective with the same change on the other ranks.
void DataParallel::State::plan_anew() {
  if (options.compress != "none")
    fail(ErrorCode::kBadInput, "DataParallel of ", options.name, " with compress=", options.compress, ": the model's parameters changed (",
         module_watch.difference(),
         "), and what compression keeps belongs to those it had; make a new DataParallel after the change, or use compress=none");
  const std::vector<NamedTensor> all = distinct_parameters(module);
  std::string text = signature(all);
  for (const NamedTensor& one : all)
    if (!index_of.contains(one.tensor.unsafeGetTensorImpl())) text += concat("new ", one.name, " with ", text_of_values(one.tensor), "\n");
  // Ranks whose model did not change fail in another exchange, and read here which parameter changed.
  const struct Note {
    const Group& group;
    ~Note() { GroupInternals::set_note(group, ""); }
  } note{group};
  GroupInternals::set_note(group, concat("has changed ", options.name, ": ", module_watch.difference(),
                                         "; all ranks must change the model alike, before the same step"));
  check_same_text(group, text, concat("the changed parameters of ", options.name),
                  "all ranks must change the model alike, and new parameters must begin with the same values: call adopt_model() on all "
                  "ranks after the change, or draw them from the same seed");
  refuse_frozen_with_own();
  order_learnt = false;
  plan(all);
}

/// What micro-steps left in the `.grad` of a parameter that was frozen then would never be exchanged, and optimizers step with it.
/// Collective.
void DataParallel::State::refuse_frozen_with_own() {
  std::string mine;
  for (size_t i = 0; i < parameters.size() && mine.empty(); ++i) {
    const at::Tensor& parameter = parameters[i].tensor;
    if (has_own[i] && !parameter.requires_grad() && parameter.grad().defined() && parameter.grad().count_nonzero().item<int64_t>() > 0)
      mine = parameters[i].name;
  }
  for (const std::string& name : group.all_gather_text(mine, "parameters that were frozen"))
    if (!name.empty())
      fail(ErrorCode::kBadInput, "parameter ", name, " of ", options.name,
           " was frozen between micro-steps (NoSync) and their exchange, so its gradient would stay this rank's own; freeze it after the "
           "optimizer's step, or set its gradient to none first");
}

/// Begins a pass.
void DataParallel::State::begin_exchange() {
  step_dropped = false;
  statistics.exposed_seconds = 0;
  if (module_watch.changed()) plan_anew();
}

void DataParallel::State::build_buckets(const std::vector<int>& order) {
  std::vector<ParameterSize> sizes;
  for (const NamedTensor& parameter : parameters)
    sizes.push_back(
        {parameter.tensor.numel(), static_cast<int>(parameter.tensor.element_size()), static_cast<int>(parameter.tensor.scalar_type())});
  buckets.clear();
  control = at::Tensor();
  slot_of.assign(parameters.size(), {});
  statistics = {.num_exchanges = statistics.num_exchanges};
  const std::vector<BucketPlan> plans = plan_buckets(sizes, order, options.first_bucket_bytes, options.bucket_bytes);
  for (size_t index = 0; index < plans.size(); ++index) {
    const BucketPlan& plan = plans[index];
    const at::Tensor& first = parameters[plan.parameters[0]].tensor;
    const int64_t num_flags = static_cast<int64_t>(plan.parameters.size());
    Bucket bucket;
    bucket.carries_control = index + 1 == plans.size() && exchanges_in_full_precision(first.scalar_type());
    // Padded to a multiple of the ranks, so that slices of an ordered sum need no copy.
    const int64_t used = plan.num_elements + num_flags + (bucket.carries_control ? kNumCarried : 0), multiple = 16 * group.size();
    const int64_t padded = (used + multiple - 1) / multiple * multiple;
    const at::TensorOptions type = first.options().requires_grad(false);
    bucket.flat = exchanged_zeros(group, padded, type);
    bucket.parameters = plan.parameters;
    bucket.offsets = plan.offsets;
    bucket.num_gradient_elements = plan.num_elements;
    for (size_t slot = 0; slot < plan.parameters.size(); ++slot)
      slot_of[plan.parameters[slot]] = {static_cast<int>(index), static_cast<int>(slot)};
    make_slots(bucket);
    if (options.compress != "none" && worker && first.scalar_type() == at::kFloat) bucket.compressor = compressor_of(plan, index);
    statistics.bytes += static_cast<int64_t>(bucket.flat.nbytes());
    buckets.push_back(std::move(bucket));
  }
  statistics.num_buckets = static_cast<int>(buckets.size());
  control_is_own = !control.defined();
  if (control_is_own) control = at::zeros({kNumCarried}, at::kFloat);
  begin_pass();
}

void DataParallel::State::make_slots(Bucket& bucket) {
  bucket.slots.clear();
  for (size_t slot = 0; slot < bucket.parameters.size(); ++slot)
    bucket.slots.push_back(alias_of(bucket.flat, bucket.offsets[slot], parameters[bucket.parameters[slot]].tensor.sizes()));
  const auto num_flags = static_cast<int64_t>(bucket.parameters.size());
  bucket.flags = alias_of(bucket.flat, bucket.num_gradient_elements, {num_flags});
  if (bucket.carries_control) control = alias_of(bucket.flat, bucket.num_gradient_elements + num_flags, {kNumCarried});
}

std::unique_ptr<Compressor> DataParallel::State::compressor_of(const BucketPlan& plan, size_t index) const {
  CompressedBuffer buffer{concat("bucket-", index), {}};
  for (size_t slot = 0; slot < plan.parameters.size(); ++slot)
    buffer.parts.push_back({plan.offsets[slot], parameters[static_cast<size_t>(plan.parameters[slot])].tensor.sizes().vec()});
  return make_compressor(options.compress, buffer, plan.num_elements, options.seed);
}

/// After the first step buckets follow the order in which rank 0's gradients came. The gradients just exchanged move there before the
/// program sees them, so that its references keep what `.grad` is from now on.
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
  for (size_t parameter = 0; parameter < parameters.size(); ++parameter) {
    at::Tensor& gradient = parameters[parameter].tensor.mutable_grad();
    if (!gradient.defined()) continue;
    const auto [bucket, slot] = slot_of[parameter];
    gradient = buckets[static_cast<size_t>(bucket)].slots[static_cast<size_t>(slot)].copy_(gradient);
    sums[parameter] = gradient.unsafeGetTensorImpl();
  }
  statistics.exposed_seconds = exposed_kept;
}

std::vector<BucketPlan> plan_buckets(const std::vector<ParameterSize>& sizes, const std::vector<int>& order, int64_t first_bucket_bytes,
                                     int64_t bucket_bytes) {
  std::vector<BucketPlan> plans;
  std::map<int, BucketPlan> open;  // The bucket being filled, by kind.
  for (const int parameter : order) {
    const ParameterSize& size = sizes[static_cast<size_t>(parameter)];
    const int64_t per_line = 64 / size.element_bytes;
    const int64_t slot = (size.num_elements + per_line - 1) / per_line * per_line;
    const int64_t limit = plans.empty() ? first_bucket_bytes : bucket_bytes;
    BucketPlan& bucket = open[size.kind];
    if (!bucket.parameters.empty() && (bucket.num_elements + slot) * size.element_bytes > limit) {
      plans.push_back(std::move(bucket));
      bucket = {};
    }
    bucket.parameters.push_back(parameter);
    bucket.offsets.push_back(bucket.num_elements);
    bucket.num_elements += slot;
  }
  for (auto& [kind, bucket] : open)
    if (!bucket.parameters.empty()) plans.push_back(std::move(bucket));
  return plans;
}

}  // namespace cohort
