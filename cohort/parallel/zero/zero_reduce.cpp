// Reduce-scatter of gradients, unit by unit.
//
// A unit is sent when the gradients of all its parameters are ready and all earlier units of the order have been sent: its gradients are
// copied to a flat buffer (zeros where there is none), which the ranks sum in rank order, each keeping its slice. Waiting gradients stay in
// `.grad`, where autograd created them. At most kMaxInFlight buffers exist; a further unit waits for the oldest.
//
// The order is the reverse of registration in the first pass, afterwards the order in which rank 0's units became complete.
//
// Cost, p ranks, unit of n bytes: one copy of n; (p-1)/p n sent and received (nothing on shared memory, which reads p slices of n/p); in
// later passes of a step one addition of n/p. Source: Rajbhandari et al. 2020, "ZeRO" (SC20), sections 5.1 and 5.2.
#include "cohort/parallel/zero/zero_reduce.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>

#include "cohort/base/fail.h"
#include "cohort/parallel/common/flat_piece.h"
#include "cohort/parallel/common/staged_exchange.h"
#include "cohort/parallel/watch/operator_watch.h"

namespace cohort {
namespace {

constexpr size_t kMaxInFlight = 2;

}  // namespace

ZeroReduce::ZeroReduce(Group group, const std::vector<NamedTensor>& parameters, const std::vector<ZeroUnit>& units, UnitMemory& memory,
                       bool keep_whole)
    : group_(std::move(group)), parameters_(parameters), memory_(memory), keep_whole_(keep_whole), unit_of_(parameters.size()) {
  for (size_t index = 0; index < units.size(); ++index) {
    Unit unit;
    unit.plan = units[index];
    unit.name = "the gradients of " + unit_name(unit.plan, parameters, index);
    const at::TensorOptions options = unit.plan.options();
    if (keep_whole) {
      unit.whole = exchanged_zeros(group_, unit.plan.num_elements, options);
      unit.sum = alias_of(unit.whole, group_.rank() * unit.plan.slice_elements, {unit.plan.slice_elements});
    } else {
      unit.whole = without_memory(unit.plan.num_elements, options);
      unit.sum = at::zeros({unit.plan.slice_elements}, options);
      memory_.attach(unit.whole);  // Aliases need memory.
    }
    for (size_t i = 0; i < unit.plan.parameters.size(); ++i) {
      const auto parameter = static_cast<size_t>(unit.plan.parameters[i]);
      unit.places.push_back(alias_of(unit.whole, unit.plan.offsets[i], parameters[parameter].tensor.sizes()));
      unit_of_[parameter] = index;
    }
    if (!keep_whole) memory_.detach(unit.whole);
    unit.num_missing = unit.plan.parameters.size();
    units_.push_back(std::move(unit));
  }
  order_.resize(units_.size());
  std::iota(order_.rbegin(), order_.rend(), 0);
  ready_.assign(parameters.size(), 0);
  used_.assign(parameters.size(), 0);
  stand_ins_.resize(parameters.size());
  stands_in_.assign(parameters.size(), 0);
}

void ZeroReduce::on_gradient(int parameter) {
  const auto index = static_cast<size_t>(parameter);
  Unit& unit = units_[unit_of_[index]];
  if (unit.started)
    fail(ErrorCode::kFailed, "parameter ", parameters_[index].name,
         " got a second gradient in one backward(), after the first had left; do not call backward() from a hook of another backward()");
  if (ready_[index]) return;
  ready_[index] = 1;
  if (--unit.num_missing == 0 && !order_learnt_) arrivals_.push_back(static_cast<int64_t>(unit_of_[index]));
}

int64_t ZeroReduce::num_ready() const {
  size_t count = next_;
  while (count < order_.size() && units_[static_cast<size_t>(order_[count])].num_missing == 0) ++count;
  return static_cast<int64_t>(count);
}

void ZeroReduce::start_up_to(int64_t count) {
  while (static_cast<int64_t>(next_) < count) start(static_cast<size_t>(order_[next_++]));
}

/// Copies the gradients into the buffer and zeroes its gaps.
void ZeroReduce::pack(Unit& unit) {
  int64_t end = 0;
  const auto clear_gap = [&](int64_t next) {
    if (next > end) unit.whole.narrow(0, end, next - end).zero_();
  };
  for (size_t i = 0; i < unit.places.size(); ++i) {
    const auto index = static_cast<size_t>(unit.plan.parameters[i]);
    at::Tensor& place = unit.places[i];
    clear_gap(unit.plan.offsets[i]);
    end = unit.plan.offsets[i] + place.numel();
    at::Tensor& gradient = parameters_[index].tensor.mutable_grad();
    used_[index] = gradient.defined() ? 1 : 0;
    if (!gradient.defined()) {
      place.zero_();
      continue;
    }
    if (gradient.is_sparse()) gradient = gradient.to_dense();
    if (place.numel() > 0 && gradient.const_data_ptr() != place.const_data_ptr()) place.copy_(gradient);
    gradient = keep_whole_ ? place : at::Tensor();
  }
  clear_gap(unit.plan.num_elements);
}

void ZeroReduce::start(size_t index) {
  Unit& unit = units_[index];
  while (in_flight_.size() >= kMaxInFlight) complete_oldest();
  if (!keep_whole_) memory_.attach(unit.whole);
  pack(unit);
  unit.started = true;
  at::Tensor output = keep_whole_ || unit.has_sum ? at::empty({unit.plan.slice_elements}, unit.sum.options()) : unit.sum;
  std::unique_ptr<Pending> pending;
  if (group_.size() == 1) output.copy_(unit.whole);
  else pending = start_reduce_scatter_sum(group_, output, unit.whole, unit.name);
  in_flight_.push_back({index, std::move(output), std::move(pending)});
}

void ZeroReduce::complete_oldest() {
  InFlight done = std::move(in_flight_.front());
  in_flight_.pop_front();
  Unit& unit = units_[done.unit];
  if (done.pending) done.pending->wait();
  if (!done.output.is_same(unit.sum)) {
    if (keep_whole_) unit.sum.copy_(done.output);
    else unit.sum.add_(done.output);
  }
  unit.has_sum = true;
  if (!keep_whole_) memory_.detach(unit.whole);
}

void ZeroReduce::finish_pass(bool dropped) {
  while (!in_flight_.empty()) complete_oldest();
  if (dropped) arrivals_.clear();
  else if (!order_learnt_) learn_order();
  for (Unit& unit : units_) {
    unit.num_missing = unit.plan.parameters.size();
    unit.started = false;
  }
  std::fill(ready_.begin(), ready_.end(), 0);
  next_ = 0;
}

void ZeroReduce::learn_order() {
  order_learnt_ = true;
  for (const int64_t unit : order_)
    if (std::find(arrivals_.begin(), arrivals_.end(), unit) == arrivals_.end()) arrivals_.push_back(unit);
  order_ = arrivals_;
  if (group_.size() == 1 || order_.empty()) return;
  at::Tensor shared = at::empty({num_units()}, at::kLong);
  std::copy(order_.begin(), order_.end(), shared.data_ptr<int64_t>());
  group_.broadcast(shared, 0, "the order of the units");
  std::copy_n(shared.const_data_ptr<int64_t>(), order_.size(), order_.begin());
}

void ZeroReduce::lay_stand_ins(const std::vector<uint8_t>& has_gradient) {
  if (keep_whole_) return;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i].tensor;
    if (!has_gradient[i] || !parameter.requires_grad() || parameter.grad().defined()) continue;
    if (!stand_ins_[i].defined()) stand_ins_[i] = gradient_stand_in(parameter);
    parameter.mutable_grad() = stand_ins_[i];
    stands_in_[i] = 1;
  }
}

std::vector<int> ZeroReduce::lift_stand_ins() {
  std::vector<int> taken;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!stands_in_[i]) continue;
    stands_in_[i] = 0;
    at::Tensor& gradient = parameters_[i].tensor.mutable_grad();
    if (gradient.is_same(stand_ins_[i]) && !has_dropped(stand_ins_[i], gradient)) {
      gradient = at::Tensor();
      continue;
    }
    taken.push_back(static_cast<int>(i));  // Removed, or zeroed by zero_grad(/*set_to_none=*/false).
    if (gradient.defined() && is_of(gradient, stand_ins_[i])) gradient = at::Tensor();
    stand_ins_[i] = at::Tensor();
  }
  return taken;
}

void ZeroReduce::clear() {
  for (Unit& unit : units_) {
    unit.has_sum = false;
    for (const int parameter : unit.plan.parameters) parameters_[static_cast<size_t>(parameter)].tensor.mutable_grad() = at::Tensor();
  }
}

int64_t ZeroReduce::pass_bytes() const {
  int64_t bytes = 0;
  for (const Unit& unit : units_) bytes += unit.plan.bytes();
  return bytes;
}

int64_t ZeroReduce::held_bytes() const {
  int64_t bytes = 0;
  for (const Unit& unit : units_) bytes += static_cast<int64_t>((keep_whole_ ? unit.whole : unit.sum).nbytes());
  return bytes;
}

}  // namespace cohort
