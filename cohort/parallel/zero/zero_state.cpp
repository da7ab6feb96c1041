// Construction of ZeRO's components, and the exchange of a pass. The algorithm is in zero_data_parallel.cpp.
#include "cohort/parallel/zero/zero_state.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <chrono>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/parallel/common/agreement.h"
#include "cohort/parallel/common/flat_piece.h"
#include "cohort/parallel/common/staged_exchange.h"
#include "cohort/parallel/common/vector_loops.h"

namespace cohort {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kNumControls = DataParallel::kNumControls;

}  // namespace

ZeroDataParallel::State::State(torch::nn::Module& module_, Group group_, const ZeroOptions& options_)
    : module(module_),
      group(std::move(group_)),
      options(options_),
      backward_watch({.at_end =
                          [this] {
                            const Quiet quiet;
                            close_pass(sync);
                          },
                      .at_begin =
                          [this](const auto&) {
                            const Quiet quiet;
                            notice_drops();
                          },
                      .at_return =
                          [this] {
                            const Quiet quiet;
                            if (!holds_gradients) reduce->lay_stand_ins(used);
                          }}) {
  if (options.stage < 1 || options.stage > 3) fail(ErrorCode::kBadInput, "ZeRO has stages 1, 2 and 3, not ", options.stage);
  if (options.bucket_bytes <= 0) fail(ErrorCode::kBadInput, "ZeRO: bucket_bytes must be positive, not ", options.bucket_bytes);
  const Quiet quiet;
  all = distinct_parameters(module);
  check_same_model(group, all);
  check_forward_writes(module, group.size());
  check_divisible(all);
  for (const NamedTensor& parameter : all)
    if (parameter.tensor.requires_grad()) check_no_gradient_hook(parameter);
  plan();
  memory = std::make_unique<UnitMemory>(live_bytes + 2 * largest_unit_bytes);
  if (options.broadcast_model) broadcast_rest();
  buffers = std::make_unique<BufferAverage>(module, group);
  weights = std::make_unique<ZeroWeights>(
      group, all, units, *memory, ZeroWeightsOptions{.keep_slices_only = options.stage == 3, .broadcast_model = options.broadcast_model});
  std::vector<ZeroUnit> trained;
  for (size_t index = 0; index < units.size(); ++index) {
    if (!units[index].trained) continue;
    trained.push_back(units[index]);
    trained_units.push_back(index);
  }
  divide_optimizer();
  reduce = std::make_unique<ZeroReduce>(group, all, trained, *memory, /*keep_whole=*/options.stage == 1);
  used.assign(all.size(), 0);
  dropped.assign(all.size(), 0);
  statistics.bytes = reduce->pass_bytes();
  statistics.num_buckets = static_cast<int>(reduce->num_units());
  watch_weights();
  if (options.stage == 3) start_gathering();
}

void ZeroDataParallel::State::plan() {
  units = plan_units(all, options.bucket_bytes, group.size());
  if (options.stage < 3) std::erase_if(units, [](const ZeroUnit& unit) { return !unit.trained; });
  for (const ZeroUnit& unit : units) largest_unit_bytes = std::max(largest_unit_bytes, unit.bytes());
  live_bytes = options.stage < 3 ? 0 : options.live_bytes > 0 ? options.live_bytes : 2 * largest_unit_bytes;
}

/// Parameters that are not divided and buffers start with rank 0's values too.
void ZeroDataParallel::State::broadcast_rest() {
  if (group.size() == 1) return;
  std::vector<NamedTensor> rest = distinct_buffers(module);
  for (const NamedTensor& parameter : all)
    if (!is_divided(parameter.tensor)) rest.push_back(parameter);
  for (const NamedTensor& one : rest) {
    if (one.tensor.numel() == 0) continue;
    const at::Tensor values = one.tensor.detach().contiguous();
    broadcast(group, values, 0, one.name);
    if (!values.is_same(one.tensor)) one.tensor.detach().copy_(values);
  }
}

void ZeroDataParallel::State::divide_optimizer() {
  std::vector<Segment> segments;
  for (size_t reduced = 0; reduced < trained_units.size(); ++reduced) {
    const size_t index = trained_units[reduced];
    for (const SlicePiece& piece : slice_pieces(units[index], all, group.rank())) {
      const NamedTensor& parameter = all[static_cast<size_t>(piece.parameter)];
      segments.push_back({parameter.name, parameter.tensor.sizes().vec(), piece.begin,
                          alias_of(weights->slice(index), piece.slice_offset, {piece.count})});
      segment_gradients.push_back({reduced, piece.parameter, piece.slice_offset, piece.count});
    }
  }
  optimizer = std::make_unique<ShardOptimizer>(options.rule, std::move(segments));
}

void ZeroDataParallel::State::start_gathering() {
  std::vector<GatheredUnit> gathered;
  for (size_t index = 0; index < weights->size(); ++index)
    gathered.push_back({"the weights of " + weights->name(index), weights->slice(index), weights->whole(index)});
  gather = std::make_unique<ZeroGather>(group, std::move(gathered), *memory,
                                        ZeroGather::Options{.live_bytes = live_bytes,
                                                            .num_ready = [this] { return reduce->num_ready(); },
                                                            .start_exchanges = [this](int64_t count) { reduce->start_up_to(count); },
                                                            .num_exchanges = reduce->num_units()});
  watch = std::make_unique<UseWatch>([this](const std::vector<int>& ids, const std::vector<int>& written_ids) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;  // Gathers are not part of a graph; grad mode stays as it is.
    gather->use(ids);
    gather->mark_written(written_ids);
  });
  for (size_t index = 0; index < weights->size(); ++index) watch->add(weights->whole(index), static_cast<int>(index));
}

void ZeroDataParallel::State::on_gradient(int parameter) {
  if (holds_gradients) return;
  const Quiet quiet;
  if (step_closed)
    fail(
        ErrorCode::kFailed, "parameter ", all[static_cast<size_t>(parameter)].name,
        " got a gradient after those of the step were exchanged; call step() first, or the module's zero_grad() to drop these, and put all "
        "but the last backward() of a step into accumulate(); ",
        kHowToStep);
  if (options.stage == 1 && !sync) return;
  if (backward_watch.has_failed())
    fail(ErrorCode::kFailed, "an exception ended a backward() of this step on rank ", group.rank(),
         "; call abandon_step() in the catch block, so that all ranks drop the step");
  backward_watch.enter();
  reduce->on_gradient(parameter);
  // In stage 3 exchanges start between gathers, at the same point on all ranks.
  if (!gather) reduce->start_up_to(reduce->num_ready());
}

/// Ends this rank's backward; after its last of the step, serves the other ranks until they end theirs. A rank that `leaves` the step ends
/// it for all.
void ZeroDataParallel::State::close_pass(bool last, bool leaves) {
  const auto began = Clock::now();
  if (!step_begun) statistics.exposed_seconds = 0;
  step_begun = true;
  notice_drops();
  if (!leaves) notice_writes();
  if (gather) statistics.exposed_seconds += gather->waited_seconds() - waited_before;
  bool is_closed = false;
  do {
    if (gather) gather->finish(Section::kPass);
    reduce->start_up_to(reduce->num_units());
    is_closed = exchange_notes(last, leaves);
  } while (last && !is_closed);
  if (last && !leaves) {
    if (group.size() > 1 && std::find(written_anywhere.begin(), written_anywhere.end(), 1) != written_anywhere.end()) compare_writes();
    forget_writes();
    buffers->average(buffer_share >= 0 ? buffer_share : 1.0 / group.size());
    step_closed = true;
  }
  statistics.exposed_seconds += seconds_since(began);
  if (gather) waited_before = gather->waited_seconds();
}

/// Ends a pass by exchanging notes and completing the sums. Whether it was the last of the step. Where a rank has left the step it is, on
/// all ranks, and throws on those that made it.
bool ZeroDataParallel::State::exchange_notes(bool last, bool leaves) {
  enum Note { kLast, kLeft, kControls, kUsed = kControls + kNumControls };
  const int64_t size = kUsed + static_cast<int64_t>(all.size());
  const at::Tensor mine = at::empty({size}, at::kFloat), notes = at::empty({group.size() * size}, at::kFloat);
  float* const note = mine.data_ptr<float>();
  note[kLast] = last ? 1 : 0;
  note[kLeft] = leaves ? 1 : 0;
  std::copy(controls.begin(), controls.end(), note + kControls);
  for (size_t i = 0; i < all.size(); ++i)
    note[kUsed + i] = static_cast<float>((reduce->used()[i] ? 1 : 0) + (was_written(i) ? 2 : 0) + (dropped[i] ? 4 : 0));
  const auto pending = group.size() > 1 ? group.start_all_gather(notes, mine, "the notes on a pass") : nullptr;
  if (pending) pending->wait();
  else notes.copy_(mine);
  int64_t num_left = 0, last_left = 0;
  for (int rank = 0; rank < group.size(); ++rank)
    if (notes.const_data_ptr<float>()[rank * size + kLeft] != 0) ++num_left, last_left = rank;
  reduce->finish_pass(/*dropped=*/num_left > 0);
  if (num_left > 0) {
    forget_gradients();
    if (leaves) return true;
    step_dropped = true;
    fail_left_step(num_left, last_left, group.size());
  }
  bool all_last = true;
  control_sums.fill(0);
  std::fill(written_anywhere.begin(), written_anywhere.end(), 0);
  for (int rank = 0; rank < group.size(); ++rank) {
    const float* const one = notes.const_data_ptr<float>() + rank * size;
    all_last &= one[kLast] != 0;
    for (int slot = 0; slot < kNumControls; ++slot) control_sums[static_cast<size_t>(slot)] += one[kControls + slot];
    for (size_t parameter = 0; parameter < all.size(); ++parameter) {
      const auto bits = static_cast<uint8_t>(one[kUsed + parameter]);
      used[parameter] |= bits & 1;
      written_anywhere[parameter] |= (bits >> 1) & 1;
      if ((bits & 4) != (dropped[parameter] ? 4 : 0))
        fail(ErrorCode::kFailed, "the program dropped the gradient of ", all[parameter].name, " on rank ",
             dropped[parameter] ? group.rank() : rank, " and not on rank ", dropped[parameter] ? rank : group.rank(),
             "; call zero_grad() on all ranks or on none");
    }
  }
  std::fill(dropped.begin(), dropped.end(), 0);
  return all_last;
}

/// Of this rank's slices. Reads one number from a device, however many parameters there are.
double ZeroDataParallel::State::squared_norm_of_slices(const std::function<bool(const std::string&)>& counts) const {
  double sum = 0;
  std::vector<at::Tensor> norms;  // On the device.
  for (const SegmentGradient& place : segment_gradients) {
    if (!used[static_cast<size_t>(place.parameter)] || !counts(all[static_cast<size_t>(place.parameter)].name)) continue;
    const at::Tensor part = reduce->slice(place.reduced_unit).narrow(0, place.slice_offset, place.count);
    if (part.is_cpu()) sum += squared_norm(part.const_data_ptr(), place.count, part.scalar_type());
    else norms.push_back(at::linalg_vector_norm(part, 2, std::nullopt, /*keepdim=*/false, at::kDouble));
  }
  return norms.empty() ? sum : at::stack(norms).square().sum().item<double>();
}

/// Over the slices of all ranks, summed in rank order.
double ZeroDataParallel::State::squared_norm_of_all(const std::function<bool(const std::string&)>& counts) const {
  const double mine = squared_norm_of_slices(counts);
  at::Tensor norms = at::empty({group.size(), 1}, at::kDouble), norm = at::empty({1}, at::kDouble);
  norm.data_ptr<double>()[0] = mine;
  Group exchange = group;
  exchange.all_gather(norms, norm, "the norm of the gradients");
  double total = 0;
  for (int rank = 0; rank < group.size(); ++rank) total += norms.const_data_ptr<double>()[rank];
  return total;
}

/// Pieces of the optimizer and of weights: this rank's slices, and undivided ones (saved by rank 0, loaded by all).
std::vector<FlatPiece> ZeroDataParallel::State::pieces(bool saving) {
  const Quiet quiet;
  notice_writes();
  if (saving && gather) gather->keep_writes();
  std::vector<FlatPiece> pieces = optimizer->state(saving);
  const auto name = [&](int parameter) { return "model/" + all[static_cast<size_t>(parameter)].name; };
  for (size_t index = 0; index < units.size(); ++index)
    for (const SlicePiece& piece : slice_pieces(units[index], all, group.rank()))
      pieces.push_back({name(piece.parameter), alias_of(weights->slice(index), piece.slice_offset, {piece.count}),
                        all[static_cast<size_t>(piece.parameter)].tensor.sizes().vec(), piece.begin});
  for (const NamedTensor& parameter : all)
    if (!is_divided(parameter.tensor) && !(saving && group.rank() > 0))
      pieces.push_back(whole_piece("model/" + parameter.name, parameter.tensor));
  return pieces;
}

// Writes of the program to weights and gradients of a ZeRO model are kept where possible and refused elsewhere.
//
// Stages 1 and 2: weights are whole, and slices and parameters share memory, so in-place writes need no help. Stage 3: a write by an
// operator to a gathered unit is noticed (operator_watch.h), and this rank's part is copied to its slice before the unit is dropped
// (zero_gather.cpp). A parameter with other memory, as torch::load() assigns, gives its values to ours and is pointed back there.
//
// Each rank copies its slice from what it wrote, so ranks must write alike. The notes at the end of a pass list the parameters and units
// that a rank wrote to; only where there are any, their checksums are compared, before the step mixes the slices.
//
// Cost: a few comparisons per parameter and call; n bytes read for the checksums of what was written.

void ZeroDataParallel::State::watch_weights() {
  location_of.assign(all.size(), {});
  for (size_t index = 0; index < units.size(); ++index)
    for (const int parameter : units[index].parameters) location_of[static_cast<size_t>(parameter)].unit = static_cast<int>(index);
  for (size_t index = 0; index < units.size(); ++index)
    for (const SlicePiece& piece : slice_pieces(units[index], all, group.rank()))
      location_of[static_cast<size_t>(piece.parameter)].piece = piece;
  for (const NamedTensor& parameter : all) weight_watch.add(parameter, is_divided(parameter.tensor));
  replaced.assign(all.size(), 0);
  written.assign(all.size(), 0);
  written_anywhere.assign(all.size(), 0);
}

/// Throws for changes that cannot be kept. Copies values in memory of the program's own to ours.
void ZeroDataParallel::State::notice_writes() {
  module_watch.check_trained("ZeroDataParallel");
  weight_watch.check();
  for (size_t i = 0; i < all.size(); ++i) written[i] |= weight_watch.is_written(i) ? 1 : 0;
  weight_watch.remember();
  if (!weight_watch.any_replaced()) return;
  if (gather) gather->settle();
  for (size_t i = 0; i < all.size(); ++i)
    if (weight_watch.is_replaced(i)) take_over(i);
}

void ZeroDataParallel::State::take_over(size_t parameter) {
  const at::Tensor values = weight_watch.restore(parameter);
  const auto& [unit, piece] = location_of[parameter];
  written[parameter] = 1;
  if (!gather || gather->is_live(unit)) weight_watch.place(parameter).copy_(values);
  if (!gather) return;
  replaced[parameter] = checksum(values);
  if (piece.count > 0)
    weights->slice(static_cast<size_t>(unit))
        .narrow(0, piece.slice_offset, piece.count)
        .copy_(values.reshape({-1}).narrow(0, piece.begin, piece.count));
}

/// For the notes: in stage 3 writes of operators count for the unit's first parameter.
bool ZeroDataParallel::State::was_written(size_t parameter) const {
  if (!gather) return written[parameter] != 0;
  const int unit = location_of[parameter].unit;
  return replaced[parameter] != 0 ||
         (units[static_cast<size_t>(unit)].parameters.front() == static_cast<int>(parameter) && gather->was_written(unit));
}

/// Collective. Error(kFailed), the same on all ranks, where ranks wrote different values or not all of them wrote.
void ZeroDataParallel::State::compare_writes() {
  std::vector<int64_t> mine(all.size(), 0);
  for (size_t i = 0; i < all.size(); ++i)
    if (gather) mine[i] = replaced[i];
    else if (written_anywhere[i]) mine[i] = checksum(all[i].tensor);
  if (gather) {
    gather->keep_writes();
    const std::vector<int64_t> of_units = gather->written_checksums();
    mine.insert(mine.end(), of_units.begin(), of_units.end());
  }
  const auto count = static_cast<int64_t>(mine.size());
  const at::Tensor one = at::empty({count}, at::kLong), checksums = at::empty({group.size(), count}, at::kLong);
  std::copy(mine.begin(), mine.end(), one.data_ptr<int64_t>());
  group.all_gather(checksums, one, "checksums of weights that were written to");
  const auto* const found = checksums.const_data_ptr<int64_t>();
  for (size_t i = 0; i < mine.size(); ++i) {
    bool is_counted = i < all.size();
    // After gather_weights() all units have checksums; only those that some rank wrote to are compared.
    if (!is_counted) is_counted = written_anywhere[static_cast<size_t>(units[i - all.size()].parameters.front())] != 0;
    for (int rank = 1; rank < group.size() && is_counted; ++rank) {
      if (found[static_cast<size_t>(rank) * mine.size() + i] == found[i]) continue;
      fail(ErrorCode::kFailed, "the program wrote to ",
           i < all.size() ? "parameter " + all[i].name : "the weights of " + weights->name(i - all.size()), " on ranks 0 and ", rank,
           " differently, or on one of them alone; write the same values on all ranks",
           gather ? ", under zero=3 all between gather_weights() and release_weights()" : "");
    }
  }
  forget_writes();
}

void ZeroDataParallel::State::forget_writes() {
  std::fill(replaced.begin(), replaced.end(), 0);
  std::fill(written.begin(), written.end(), 0);
  std::fill(written_anywhere.begin(), written_anywhere.end(), 0);
  if (gather) gather->forget_writes();
}

/// Module::zero_grad() between two backwards, or before a step() that needs them, drops what one process would drop.
void ZeroDataParallel::State::notice_drops() {
  const std::vector<int> taken = reduce->lift_stand_ins();
  const auto is_gone = [&](int parameter) {
    return !used[static_cast<size_t>(parameter)] || std::find(taken.begin(), taken.end(), parameter) != taken.end() ||
           (options.stage == 1 && !all[static_cast<size_t>(parameter)].tensor.grad().defined());
  };
  if (!step_closed) {
    for (const int parameter : taken) drop(parameter);
    return;
  }
  if (std::find(used.begin(), used.end(), 1) == used.end()) return;
  for (size_t i = 0; i < all.size(); ++i) {
    if (is_gone(static_cast<int>(i))) continue;
    if (!taken.empty()) fail_dropped(taken.front());
    return;
  }
  check_was_applied();
  forget_gradients();
}

/// The step's gradients are exchanged, and ranks might drop different ones.
void ZeroDataParallel::State::fail_dropped(int parameter) const {
  fail(ErrorCode::kFailed, "the program dropped the gradient of ", all[static_cast<size_t>(parameter)].name,
       " alone, or just before step(), when the ranks had exchanged it; call the module's zero_grad() in place of step(), or freeze the "
       "parameter (requires_grad_(false)) before Parallel is made");
}

void ZeroDataParallel::State::drop(int parameter) {
  used[static_cast<size_t>(parameter)] = 0;
  dropped[static_cast<size_t>(parameter)] = 1;
  for (const SegmentGradient& place : segment_gradients)
    if (place.parameter == parameter) reduce->slice(place.reduced_unit).narrow(0, place.slice_offset, place.count).zero_();
}

/// The next backward begins a new step.
void ZeroDataParallel::State::forget_gradients() {
  reduce->lift_stand_ins();
  reduce->clear();
  std::fill(dropped.begin(), dropped.end(), 0);
  std::fill(used.begin(), used.end(), 0);
  step_closed = step_begun = false;
}

/// Throws where finished backwards were never applied: the program's optimizer had nothing to work on.
void ZeroDataParallel::State::check_was_applied() {
  if (!step_closed || step_was_called) return;
  constexpr int kPatience = 3;  // A program may drop its first gradients, for instance infinite ones.
  bool was_written_since = false;
  for (size_t i = 0; i < all.size(); ++i) was_written_since |= all[i].tensor.requires_grad() && weight_watch.is_written(i);
  if (!was_written_since && num_dropped + 1 < kPatience) {
    ++num_dropped;
    return;
  }
  fail(ErrorCode::kFailed, "the gradients of ", num_dropped + 1, " finished backward passes were dropped and step() was never called; ",
       kHowToStep);
}

void ZeroDataParallel::skip_step() {
  const Quiet quiet;
  state_->num_dropped = 0;
  state_->forget_gradients();
}

void ZeroDataParallel::load_weights() {
  const Quiet quiet;
  State& s = *state_;
  s.weight_watch.check();
  const bool was_held = s.gather && s.gather->holds_all();
  if (s.gather && !was_held) {
    s.gather->finish(Section::kEvaluation);
    // Values that were already copied to slices exist nowhere as rank 0's only.
    std::fill(s.written_anywhere.begin(), s.written_anywhere.end(), 1);
    s.compare_writes();
    s.gather->hold_all();
  }
  for (size_t i = 0; i < s.all.size(); ++i)
    if (s.weight_watch.is_replaced(i)) s.weight_watch.place(i).copy_(s.weight_watch.restore(i));
  for (size_t index = 0; index < s.units.size() && s.group.size() > 1; ++index)
    broadcast(s.group, s.weights->whole(index), 0, s.weights->name(index));
  s.broadcast_rest();
  if (s.gather) s.gather->keep_writes();
  if (s.gather && !was_held) s.gather->weights_changed();
  for (const NamedTensor& parameter : s.all) parameter.tensor.unsafeGetTensorImpl()->bump_version();
  s.weight_watch.remember();
  s.forget_writes();
}

}  // namespace cohort
