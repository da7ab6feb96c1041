#pragma once
// The update of weights some of which are pruned: those that it finds at zero, and those that `keep` says. The rule is the update's own;
// what it made of pruned weights and of their state (momentum, Adam's averages) becomes zero again. So which weights are pruned is what the
// weights themselves say, in every checkpoint and on every rank, and no mask is kept between steps.
//
// Cost: the update in tiles that stay in the first-level cache, a byte a weight beside it.

#include <algorithm>
#include <array>
#include <cstdint>

namespace cohort {

/// `slots`: one or two arrays, or null. `keep`: null, or a byte a weight, 0 for what is pruned from here on. `update`(at, slots, length)
/// updates elements [at, at + length), whose state begins at `slots`.
template <typename T, typename Update>
void update_pruned(T* weights, T* const (&slots)[2], int64_t count, const uint8_t* keep, const Update& update) {
  constexpr int64_t kTile = 4096;
  std::array<uint8_t, kTile> kept;
  for (int64_t at = 0; at < count; at += kTile) {
    const int64_t length = std::min(kTile, count - at);
    T* const w = weights + at;
    for (int64_t i = 0; i < length; ++i) kept[static_cast<size_t>(i)] = w[i] != 0;
    for (int64_t i = 0; i < length && keep; ++i) kept[static_cast<size_t>(i)] &= static_cast<uint8_t>(keep[at + i] != 0);
    T* slots_at[2] = {slots[0] ? slots[0] + at : nullptr, slots[1] ? slots[1] + at : nullptr};
    update(at, slots_at, length);
    for (T* const array : {w, slots_at[0], slots_at[1]})
      for (int64_t i = 0; i < length && array; ++i) array[i] = kept[static_cast<size_t>(i)] ? array[i] : T(0);
  }
}

}  // namespace cohort
