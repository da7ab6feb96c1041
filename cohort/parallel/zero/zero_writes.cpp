// What the program itself does to the weights and gradients of a ZeRO model: kept where it can be, said where not.
//
// Stages 1 and 2: weights are whole, and slices and parameters are the same memory, so writes in place need no help. Stage 3: an operator
// that writes to a gathered unit is seen (use_watch.h), and this rank's part goes to its slice before the unit goes (zero_gather.cpp).
// A parameter that was given other memory, as torch::load() does, gives its values to ours and is pointed back there.
//
// Each rank takes its own slice from what it wrote, so ranks must write alike. The notes that end a pass say which parameters and units a
// rank wrote to; only where there are any, checksums of what it wrote are compared, before the step mixes the slices.
//
// Cost: a few comparisons a parameter and call; n bytes read for the checksum of what was written.
#include <ATen/ops/empty.h>

#include <algorithm>

#include "cohort/base/fail.h"
#include "cohort/parallel/common/staged_exchange.h"
#include "cohort/parallel/zero/zero_state.h"

namespace cohort {

void ZeroDataParallel::State::watch_weights() {
  place_of.assign(all.size(), {});
  for (size_t index = 0; index < units.size(); ++index)
    for (const int parameter : units[index].parameters) place_of[static_cast<size_t>(parameter)].unit = static_cast<int>(index);
  for (size_t index = 0; index < units.size(); ++index)
    for (const SlicePiece& piece : slice_pieces(units[index], all, group.rank()))
      place_of[static_cast<size_t>(piece.parameter)].piece = piece;
  for (const NamedTensor& parameter : all) weight_watch.add(parameter, is_divided(parameter.tensor));
  replaced.assign(all.size(), 0);
  written.assign(all.size(), 0);
  written_anywhere.assign(all.size(), 0);
}

/// Errors for what cannot be kept. Values in memory of the program's own go to ours.
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
  const auto& [unit, piece] = place_of[parameter];
  written[parameter] = 1;
  if (!gather || gather->is_live(unit)) weight_watch.place(parameter).copy_(values);
  if (!gather) return;
  replaced[parameter] = checksum(values);
  if (piece.count > 0)
    weights->slice(static_cast<size_t>(unit))
        .narrow(0, piece.slice_offset, piece.count)
        .copy_(values.reshape({-1}).narrow(0, piece.begin, piece.count));
}

/// For the notes: in stage 3 what operators wrote counts for the first parameter of the unit.
bool ZeroDataParallel::State::was_written(size_t parameter) const {
  if (!gather) return written[parameter] != 0;
  const int unit = place_of[parameter].unit;
  return replaced[parameter] != 0 ||
         (units[static_cast<size_t>(unit)].parameters.front() == static_cast<int>(parameter) && gather->was_written(unit));
}

/// Collective. Where ranks wrote different values, or not all of them wrote: Error(kFailed), the same on all.
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
    // After gather_weights() there are checksums of all units: those count that some rank wrote to.
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

/// The gradients of the step are exchanged, and ranks might drop different ones.
void ZeroDataParallel::State::fail_dropped(int parameter) const {
  fail(ErrorCode::kFailed, "the program dropped the gradient of ", all[static_cast<size_t>(parameter)].name,
       " alone, or just before step(), when the ranks had exchanged it; call the module's zero_grad() in place of step(), or freeze the "
       "parameter (requires_grad_(false)) before Parallel is made");
}

void ZeroDataParallel::State::drop(int parameter) {
  used[static_cast<size_t>(parameter)] = 0;
  dropped[static_cast<size_t>(parameter)] = 1;
  for (const ZeroPlace& place : places)
    if (place.parameter == parameter) reduce->slice(place.reduced_unit).narrow(0, place.slice_offset, place.count).zero_();
}

/// A step is over, or given up: the next backward begins anew.
void ZeroDataParallel::State::forget_gradients() {
  reduce->lift_stand_ins();
  reduce->clear();
  std::fill(dropped.begin(), dropped.end(), 0);
  std::fill(used.begin(), used.end(), 0);
  step_closed = step_begun = false;
}

/// Throws where finished backwards were never applied: an optimizer of the program's own had nothing to work on.
void ZeroDataParallel::State::check_was_applied() {
  if (!step_closed || step_was_called) return;
  constexpr int kPatience = 3;  // A program may drop its first gradients, because they are not finite, say.
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
    // What was taken over already is in slices: rank 0's values alone are nowhere.
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
