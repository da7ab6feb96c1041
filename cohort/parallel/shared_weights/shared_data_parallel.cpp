// Data parallelism with shared weights and optimizer state on a host.
//
// The parameters lie in rank 0's shared memory and are shared by all ranks; all trained elements, one parameter after the other, are
// divided into p consecutive slices, one per rank. Steps, p ranks, n elements, after backward() has left gradients in shared memory
// (gradient_memory.cpp):
//   1. finish_backward(): rank r writes where its gradients lie (and its control numbers) to its table, publishes "arrived" and waits
//      until all have. Where a rank has abandoned the step, all wait until all have read that, and drop the step.
//   2. step(): in one pass over its slice rank r adds the gradients of all ranks, in rank order, and applies the optimizer to its slice of
//      the weights in place; publishes "finished" and waits until all have.
// Clipping and checks for infinities need the sum before the update: then step 2 is two passes, the sum is kept in the rank's own gradient,
// and the partial norms are exchanged between them.
//
// Cost for a rank: 2 synchronisations (3 with clipping), no message, no copy of a gradient larger than a page. Memory traffic of the host:
// p n gradients read once, n weights and s n optimizer state read and written once (s = 0 sgd, 1 momentum, 2 adam). With an all-reduce and
// a whole optimizer in each rank it is 2 p n + p (3 + 2 s) n.
// Memory of the host: n weights, s n state, p n gradients.
//
// Source: ZeRO stage 1 (Rajbhandari et al. 2020, section 5.1) where "gather" is a page table; the idea of a server that owns a slice of the
// weights in shared memory is that of Hogwild's lock-free predecessors and BytePS' CPU servers. Sums in rank order are ours.
#include "cohort/parallel/shared_weights/shared_data_parallel.h"

#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/comm/group_internals.h"
#include "cohort/parallel/common/agreement.h"
#include "cohort/parallel/common/flat_piece.h"
#include "cohort/parallel/common/vector_loops.h"
#include "cohort/parallel/shared_weights/shared_data_parallel_state.h"
#include "cohort/parallel/watch/backward_watch.h"
#include "cohort/plan/cost/memory.h"

namespace cohort {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kNoGradient = ~uint64_t{0};

}  // namespace

/// Writes the offset of each gradient; copies those outside shared memory.
void SharedDataParallel::State::write_table() {
  uint64_t* const places = table(group.rank());
  held_gradients.clear();
  for (size_t i = 0; i < trained.size(); ++i) {
    at::Tensor gradient = trained[i].tensor.grad();
    places[i] = kNoGradient;
    if (!gradient.defined() || gradient.numel() == 0) continue;
    if (gradient.is_sparse()) gradient = gradient.to_dense();
    if (small_places[i].defined()) {
      if (gradient.is_contiguous()) std::memcpy(small_places[i].data_ptr(), gradient.data_ptr(), gradient.nbytes());
      else small_places[i].copy_(gradient);
      gradient = small_places[i];
    } else if (!may_be_read_in_place(gradient)) {
      gradient = gradient_memory->empty_like(trained[i].tensor).copy_(gradient);
    }
    arena->offset_of(gradient.data_ptr(), gradient.nbytes(), &places[i]);
    held_gradients.push_back(std::move(gradient));
  }
}

/// Not where the program keeps it or a view of it: a sum may overwrite the gradient.
bool SharedDataParallel::State::may_be_read_in_place(const at::Tensor& gradient) const {
  constexpr size_t kOwnUses = 2;  // In `.grad` and here.
  size_t offset;
  return gradient.is_contiguous() && gradient.use_count() <= kOwnUses && gradient.storage().use_count() == 1 &&
         arena->offset_of(gradient.data_ptr(), gradient.nbytes(), &offset);
}

/// Whether any rank has gradients. Between arrive() and the end of the step.
bool SharedDataParallel::State::has_gradients() const {
  for (int rank = 0; rank < group.size(); ++rank)
    if (std::any_of(table(rank), table(rank) + trained.size(), [](uint64_t place) { return place != kNoGradient; })) return true;
  return false;
}

/// Recorded as the operation that it replaces, so that failures are reported like those of any exchange.
void SharedDataParallel::State::wait_all(ShmCounter SharedRankPage::* counter, Op op, int64_t count, const char* what) {
  const at::ScalarType type = trained.empty() ? at::kFloat : trained.front().tensor.scalar_type();
  GroupInternals::run_by_hand(group, op, static_cast<size_t>(count), type, what, [&] {
    GroupInternals::waiter(group)->wait_all(group.rank(), num_steps, [&](int peer) -> ShmCounter& { return page(peer).*counter; });
  });
}

/// Waits until all tables are written, or drops the step where a rank abandons it.
void SharedDataParallel::State::meet(bool leaves) {
  SharedRankPage& mine = page(group.rank());
  mine.left = leaves;
  mine.replaced = replaced_parameters();
  publish(mine.arrived, ++num_steps);
  wait_all(&SharedRankPage::arrived, Op::kReduceScatter, num_elements, "gradients");
  int64_t num_left = 0, last = 0;
  for (int rank = 0; rank < group.size(); ++rank)
    if (page(rank).left) ++num_left, last = rank;
  if (num_left == 0) return;
  publish(mine.finished, num_steps);
  wait_all(&SharedRankPage::finished, Op::kAllGather, num_elements, "that a rank left the step");
  forget_gradients();
  if (leaves) return;
  step_dropped = true;
  fail_left_step(num_left, last, group.size());
}

void SharedDataParallel::State::arrive() {
  if (arrived) return;
  const auto began = Clock::now();
  at::NoGradGuard no_grad;
  check_weights();
  check_samples();
  write_table();
  SharedRankPage& mine = page(group.rank());
  std::copy(controls.begin(), controls.end(), mine.controls);
  meet(/*leaves=*/false);
  for (int slot = 0; slot < DataParallel::kNumControls; ++slot) {
    double sum = 0;
    for (int rank = 0; rank < group.size(); ++rank) sum += page(rank).controls[slot];
    control_sums[static_cast<size_t>(slot)] = static_cast<float>(sum);
  }
  take_over();
  buffers->average(buffer_share >= 0 ? buffer_share : 1.0 / group.size());
  arrived = true;
  statistics.exposed_seconds = seconds_since(began);
}

/// The gradients of a slice on the ranks that have one, in rank order.
std::vector<std::byte*> SharedDataParallel::State::addends(const OwnSlice& slice) const {
  std::vector<std::byte*> arrays;
  const size_t skip = static_cast<size_t>(slice.begin) * trained[slice.parameter].tensor.element_size();
  for (int rank = 0; rank < group.size(); ++rank)
    if (const uint64_t place = table(rank)[slice.parameter]; place != kNoGradient) arrays.push_back(arena->region(rank) + place + skip);
  return arrays;
}

/// In one pass. Parameters without a gradient, and their state, stay unchanged.
void SharedDataParallel::State::add_and_update(double learning_rate, double factor) {
  for (size_t i = 0; i < slices.size(); ++i) {
    const std::vector<std::byte*> arrays = addends(slices[i]);
    if (arrays.empty()) continue;
    optimizer->begin_update(i);
    optimizer->update_by_sum(i, arrays, learning_rate, factor);
  }
}

/// First of two passes: the sum overwrites the first addend, of which no other rank reads this slice. Returns its squared norm.
double SharedDataParallel::State::add_and_measure(const std::function<bool(const std::string&)>& counts) {
  double norm_squared = 0;
  sums.assign(slices.size(), nullptr);
  for (size_t i = 0; i < slices.size(); ++i) {
    const std::vector<std::byte*> arrays = addends(slices[i]);
    if (arrays.empty()) continue;
    sums[i] = arrays.front();
    const at::ScalarType type = trained[slices[i].parameter].tensor.scalar_type();
    const size_t element_bytes = c10::elementSize(type);
    const bool is_counted = counts(trained[slices[i].parameter].name);
    for_each_tile_sum(arrays, slices[i].count, type, [&](int64_t offset, int64_t count, const void* sum) {
      std::memcpy(sums[i] + static_cast<size_t>(offset) * element_bytes, sum, static_cast<size_t>(count) * element_bytes);
      if (is_counted) norm_squared += squared_norm(sum, count, type);
    });
  }
  return norm_squared;
}

/// Computes the same norm and decision on every rank.
StepOutcome SharedDataParallel::State::agree(double norm_squared, const StepOptions& options, double* factor) {
  SharedRankPage& mine = page(group.rank());
  mine.norm_squared = norm_squared;
  publish(mine.summed, num_steps);
  wait_all(&SharedRankPage::summed, Op::kAllReduce, 1, "gradient norm");
  double total = 0;
  for (int rank = 0; rank < group.size(); ++rank) total += page(rank).norm_squared;
  return judge_gradient(total, options, factor);
}

SharedDataParallel::SharedDataParallel(torch::nn::Module& module, Group group, SharedDataParallelOptions options)
    : state_(std::make_unique<State>(module, std::move(group), options)) {
  for (const NamedTensor& parameter : state_->trained)
    set_gradient_hook(parameter, [state = state_.get()](const at::Tensor& first) {
      if (state->watch.enter()) state->begin_backward(first);
    });
}

SharedDataParallel::~SharedDataParallel() {
  for (const NamedTensor& parameter : state_->trained) remove_gradient_hook(parameter);
}

void SharedDataParallel::zero_grad() {
  if (state_->watch.has_failed() && !state_->arrived) abandon_step();
  state_->watch.clear();
  state_->step_dropped = false;
  state_->check_weights();
  if (state_->has_begun) state_->note_dropped();
  state_->forget_gradients();
}

void SharedDataParallel::set_sync(bool) {}  // Gradients accumulate in `.grad` until finish_backward().
void SharedDataParallel::set_buffer_share(double share) { state_->buffer_share = share; }
void SharedDataParallel::set_control(int slot, float value) { state_->controls.at(static_cast<size_t>(slot)) = value; }
float SharedDataParallel::control_sum(int slot) const { return state_->control_sums.at(static_cast<size_t>(slot)); }
void SharedDataParallel::exchange_without_backward() {}
void SharedDataParallel::finish_backward() { state_->arrive(); }

void SharedDataParallel::abandon_step() {
  State& s = *state_;
  s.watch.clear();
  if (!s.step_dropped) s.meet(/*leaves=*/true);
  s.step_dropped = false;
  s.arrived = false;
}

StepOutcome SharedDataParallel::step(const StepOptions& options) {
  State& s = *state_;
  const bool is_bare = !s.arrived;
  s.arrive();
  if (is_bare && !s.has_gradients())
    fail(ErrorCode::kFailed,
         "step() was called and no rank has made a backward() since the last step(), zero_grad() or the start; a step() "
         "uses its gradients up. A rank without samples calls finish_backward() first");
  s.check_weights();
  s.step_was_called = true;
  at::NoGradGuard no_grad;
  const auto began = Clock::now();
  StepOutcome outcome;
  double factor = gradient_factor();
  if (options.clip_norm > 0 || options.check_finite) {
    outcome = s.agree(s.add_and_measure([this](const std::string& name) { return counts(name); }), options, &factor);
    for (size_t i = 0; i < s.slices.size() && !outcome.skipped; ++i) {
      if (!s.sums[i]) continue;
      s.optimizer->begin_update(i);
      s.optimizer->update(i, 0, s.slices[i].count, s.sums[i], options.learning_rate, factor);
    }
  } else {
    s.add_and_update(options.learning_rate, factor);
  }
  const auto updated = Clock::now();
  outcome.update_seconds = std::chrono::duration<double>(updated - began).count();
  publish(s.page(s.group.rank()).finished, s.num_steps);
  s.wait_all(&SharedRankPage::finished, Op::kAllGather, s.num_elements, "weights");
  s.statistics.exposed_seconds += seconds_since(updated);
  s.remember_weights();
  s.forget_gradients();
  return outcome;
}

const ExchangeStatistics& SharedDataParallel::statistics() const { return state_->statistics; }

MemoryForecast SharedDataParallel::memory_forecast() const {
  const int64_t trained = total_bytes(state_->trained), frozen = total_bytes(state_->all) - trained;
  const int ranks = state_->group.size();
  const StateBytes state = strategy_memory({.one_copy = true, .num_ranks = ranks, .trained_bytes = trained, .frozen_bytes = frozen});
  // Rank 0 holds the shared weights.
  return {state_->group.rank() == 0 ? trained + frozen : 0, state.gradients, state_->optimizer->state_bytes()};
}

std::vector<FlatPiece> SharedDataParallel::saved_pieces() {
  state_->check_weights();
  state_->copy_replaced();
  std::vector<FlatPiece> pieces = state_->optimizer->state(/*saving=*/true);
  for (size_t i = 0; i < state_->optimizer->size(); ++i) {
    const Segment& segment = state_->optimizer->segment(i);
    pieces.push_back({"model/" + segment.parameter, segment.weights, segment.shape, segment.begin});
  }
  if (state_->group.rank() == 0)
    for (const NamedTensor& parameter : state_->all)
      if (!parameter.tensor.requires_grad()) pieces.push_back(whole_piece("model/" + parameter.name, parameter.tensor));
  return pieces;
}

std::vector<FlatPiece> SharedDataParallel::loaded_pieces() {
  std::vector<FlatPiece> pieces = state_->optimizer->state(/*saving=*/false);
  for (FlatPiece& piece : saved_pieces())
    if (piece.name.starts_with("model/")) pieces.push_back(std::move(piece));
  return pieces;
}

ShardOptimizer* SharedDataParallel::optimizer() { return state_->optimizer.get(); }

void SharedDataParallel::loaded() {
  state_->optimizer->load_counts();
  state_->group.barrier();
  state_->remember_weights();
}

}  // namespace cohort
