// ZeRO stages 1 to 3.
//
// Parameters lie in flat units (zero_units.h); rank r owns slice r of each: only it holds optimizer state for the slice and updates it.
//   1. Forward. Stage 3: a unit is gathered when an operator reads it (operator_watch.h reports when, zero_gather.h gathers).
//   2. Backward. Post-accumulate hooks report each gradient; a unit whose gradients are all there is reduce-scattered while backward goes
//   on
//      (zero_reduce.h). In stages 2 and 3 `.grad` is given up when the unit leaves; each backward of an accumulated step adds to the
//      slices.
//   3. When backward ends (engine callback) the remaining units leave, and one small message a rank ends the pass: whether this was the
//      rank's last backward of the step, its control numbers, and which parameters it had gradients for, or dropped. A rank that is done
//      while others are not takes part in their passes with zeros. Where a note reports that its rank abandoned the step, all drop the step
//      with that pass.
//   4. step(): the global norm from the slices' norms (one number a rank, added in rank order), the update of the own slices, and in stages
//      1 and 2 the all-gather of the weights, each unit's while the next is updated. A parameter that no rank had a gradient for keeps
//      value and state.
//
// Cost a step and rank, n bytes of weights, p ranks: (p-1)/p n of reduce-scatter (for each backward in stages 2 and 3), and (p-1)/p n of
// all-gather in stages 1 and 2: together what an all-reduce costs; twice that all-gather in stage 3 (forward and backward). Memory: see the
// header. Source: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (SC20), section 5.
// Differences: any module without annotations, sums in rank order, ranks may compute different things.
#include "cohort/parallel/zero/zero_data_parallel.h"

#include <algorithm>
#include <chrono>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/parallel/common/flat_piece.h"
#include "cohort/parallel/watch/backward_watch.h"
#include "cohort/parallel/zero/zero_state.h"
#include "cohort/plan/cost/memory.h"

namespace cohort {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

ZeroDataParallel::ZeroDataParallel(torch::nn::Module& module, Group group, ZeroOptions options)
    : state_(std::make_unique<State>(module, std::move(group), options)) {
  State* const state = state_.get();
  for (size_t i = 0; i < state->all.size(); ++i)
    if (state->all[i].tensor.requires_grad())
      set_gradient_hook(state->all[i], [state, i](const at::Tensor&) { state->on_gradient(static_cast<int>(i)); });
}

ZeroDataParallel::~ZeroDataParallel() {
  for (const NamedTensor& parameter : state_->all)
    if (parameter.tensor.requires_grad()) remove_gradient_hook(parameter);
}

void ZeroDataParallel::zero_grad() {
  State& s = *state_;
  if (s.backward_watch.has_failed() && !s.step_closed) abandon_step();
  s.backward_watch.clear();
  s.step_dropped = false;
  const Quiet quiet;
  s.check_was_applied();
  s.notice_writes();
  s.forget_gradients();
  s.statistics.exposed_seconds = 0;
}

void ZeroDataParallel::set_sync(bool on) { state_->sync = on; }
void ZeroDataParallel::hold_gradients() { state_->holds_gradients = true; }
void ZeroDataParallel::set_buffer_share(double share) { state_->buffer_share = share; }
void ZeroDataParallel::set_control(int slot, float value) { state_->controls.at(static_cast<size_t>(slot)) = value; }
float ZeroDataParallel::control_sum(int slot) const { return state_->control_sums.at(static_cast<size_t>(slot)); }

void ZeroDataParallel::exchange_without_backward() {
  const Quiet quiet;
  State& s = *state_;
  if (s.holds_gradients) {
    for (size_t i = 0; i < s.all.size(); ++i)
      if (s.all[i].tensor.requires_grad() && s.all[i].tensor.grad().defined()) s.reduce->on_gradient(static_cast<int>(i));
    return s.close_pass(true);
  }
  if (s.options.stage > 1 || s.sync) s.close_pass(s.sync);
}

void ZeroDataParallel::finish_backward() {
  const Quiet quiet;
  if (!state_->step_closed) state_->close_pass(true);
}

void ZeroDataParallel::abandon_step() {
  const Quiet quiet;
  State& s = *state_;
  s.backward_watch.clear();
  if (!s.step_dropped) s.close_pass(/*last=*/true, /*leaves=*/true);
  s.step_dropped = false;
}

StepOutcome ZeroDataParallel::step(const StepOptions& options) {
  State& s = *state_;
  const bool is_bare = !s.step_closed;
  finish_backward();
  const Quiet quiet;
  if (is_bare && std::find(s.used.begin(), s.used.end(), 1) == s.used.end())
    fail(ErrorCode::kFailed,
         "step() was called and no rank has made a backward() since the last step(), zero_grad() or the start; a step() "
         "uses its gradients up. A rank without samples calls exchange_without_backward() or finish_backward() first");
  if (const std::vector<int> taken = s.reduce->lift_stand_ins(); !taken.empty()) s.fail_dropped(taken.front());
  s.notice_writes();
  if (s.gather) {
    s.gather->settle();
    s.gather->keep_writes();
  }
  s.step_was_called = true;
  StepOutcome outcome;
  double factor = gradient_factor();
  if (options.clip_norm > 0 || options.check_finite) {
    outcome = judge_gradient(s.squared_norm_of_all([this](const std::string& name) { return counts(name); }), options, &factor);
  }
  if (outcome.skipped) {
    s.forget_gradients();
    return outcome;
  }
  const auto began = Clock::now();
  std::vector<std::unique_ptr<Pending>> gathers;
  for (size_t segment = 0, reduced = 0; reduced < s.trained_units.size(); ++reduced) {
    for (; segment < s.segment_gradients.size() && s.segment_gradients[segment].reduced_unit == reduced; ++segment) {
      const SegmentGradient& place = s.segment_gradients[segment];
      if (!s.used[static_cast<size_t>(place.parameter)]) continue;
      s.optimizer->update(segment, s.reduce->slice(reduced).narrow(0, place.slice_offset, place.count), options.learning_rate, factor);
    }
    if (!s.gather) gathers.push_back(s.weights->start_gather(s.trained_units[reduced]));
  }
  outcome.update_seconds = seconds_since(began);
  for (const auto& pending : gathers)
    if (pending) pending->wait();
  if (s.gather) s.gather->weights_changed();
  for (const NamedTensor& parameter : s.all)  // Refuses backward through a graph from before the step.
    if (parameter.tensor.requires_grad()) parameter.tensor.unsafeGetTensorImpl()->bump_version();
  s.weight_watch.remember();
  s.forget_gradients();
  s.statistics.exposed_seconds += seconds_since(began) - outcome.update_seconds;
  return outcome;
}

void ZeroDataParallel::finish_evaluation() {
  const Quiet quiet;
  if (state_->gather) state_->gather->finish(Section::kEvaluation);
}

void ZeroDataParallel::gather_weights() {
  finish_evaluation();
  const Quiet quiet;
  state_->notice_writes();
  if (state_->gather) state_->gather->hold_all();
}

void ZeroDataParallel::release_weights() {
  const Quiet quiet;
  state_->notice_writes();
  if (state_->gather) state_->gather->release_all();
}

const ExchangeStatistics& ZeroDataParallel::statistics() const { return state_->statistics; }

MemoryForecast ZeroDataParallel::memory_forecast() const {
  const State& s = *state_;
  StrategyShape shape{
      .zero = s.options.stage, .num_ranks = s.group.size(), .largest_unit_bytes = s.largest_unit_bytes, .live_bytes = s.live_bytes};
  for (const ZeroUnit& unit : s.units) {
    (unit.trained ? shape.trained_bytes : shape.frozen_bytes) += unit.bytes();
    (unit.trained ? shape.trained_part_bytes : shape.frozen_part_bytes) += unit.slice_bytes();
  }
  const StateBytes state = strategy_memory(shape);
  MemoryForecast forecast{state.weights, state.gradients + state.buckets, s.optimizer->state_bytes()};
  for (const NamedTensor& parameter : s.all)
    if (!s.is_divided(parameter.tensor)) forecast.weight_bytes += static_cast<int64_t>(parameter.tensor.nbytes());
  return forecast;
}

std::vector<FlatPiece> ZeroDataParallel::saved_pieces() { return state_->pieces(/*saving=*/true); }
std::vector<FlatPiece> ZeroDataParallel::loaded_pieces() { return state_->pieces(/*saving=*/false); }

ShardOptimizer* ZeroDataParallel::optimizer() { return state_->optimizer.get(); }

void ZeroDataParallel::loaded() {
  const Quiet quiet;
  State& s = *state_;
  s.optimizer->load_counts();
  s.forget_writes();
  if (s.gather) {
    s.gather->settle();
    return s.gather->weights_changed();
  }
  for (size_t index = 0; index < s.units.size(); ++index)
    if (const auto pending = s.weights->start_gather(index)) pending->wait();
}

int64_t ZeroDataParallel::peak_bytes() const {
  const State& s = *state_;
  int64_t bytes = s.optimizer->state_bytes() + s.reduce->held_bytes() + s.memory->peak_bytes();
  for (size_t index = 0; index < s.weights->size(); ++index)
    bytes += static_cast<int64_t>((s.gather ? s.weights->slice(index) : s.weights->whole(index)).nbytes());
  for (const NamedTensor& parameter : s.all)
    if (!s.is_divided(parameter.tensor)) bytes += static_cast<int64_t>(parameter.tensor.nbytes());
  return bytes;
}

int64_t ZeroDataParallel::unit_bytes() const { return state_->memory->lent_bytes(); }
int64_t ZeroDataParallel::peak_unit_bytes() const { return state_->memory->peak_bytes(); }
int64_t ZeroDataParallel::num_gathers() const { return state_->gather ? state_->gather->num_gathers() : 0; }
int64_t ZeroDataParallel::num_unforeseen_gathers() const { return state_->gather ? state_->gather->num_unforeseen() : 0; }

}  // namespace cohort
