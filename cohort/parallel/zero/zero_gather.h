#pragma once
// Sharded weights that are gathered while they are used: ZeRO stage 3. Protocol: zero_gather.cpp.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/parallel/zero/zero_units.h"

namespace cohort {

// Predicts the order in which units are used, to prefetch them. No LibTorch.
//
// A table maps the last two events to the one that followed them last time. Training (forward and backward are different events),
// accumulation and evaluation have entries of their own. A step that repeats the previous one is predicted from its second event on; a
// wrong prediction only costs a needless gather.

class UsePredictor {
 public:
  /// The end of a step, where predictions end.
  static constexpr int kEnd = -1;

  /// Adds an event, >= 0 or kEnd; ignores repetitions of the last one.
  void note(int event);
  /// The next expected events, in order: at most `count`, fewer where unknown or at the end of a step.
  std::vector<int> ahead(size_t count) const;
  void forget();

 private:
  static uint64_t key(int before, int last) {
    return static_cast<uint64_t>(static_cast<uint32_t>(before)) << 32 | static_cast<uint32_t>(last);
  }

  std::unordered_map<uint64_t, int> next_;
  int before_ = kEnd, last_ = kEnd;
};

/// A unit as it is gathered.
struct GatheredUnit {
  std::string name;
  at::Tensor slice;  ///< This rank's elements, always present.
  at::Tensor whole;  ///< All elements {ranks x slice}; has memory only while the unit is live.
};

/// What a rank ends when it needs no more weights for now.
enum class Section : int64_t { kPass = 1, kEvaluation = 2 };

/// One per model and rank; one thread at a time. Units may lie on a device. All calls except use() are collective; use() is answered by
/// whatever the other ranks do next: their own use(), finish(), or update. Ranks may use units in any order; where the orders agree units
/// are prefetched.
class ZeroGather {
 public:
  struct Options {
    int64_t live_bytes = 0;  ///< Limit of whole units held, unless one operator needs more.
    /// The number of gradient exchanges that this rank could start, and a callback that starts them up to a number that all ranks have
    /// reached: they begin between gathers, at the same point on all ranks.
    std::function<int64_t()> num_ready = [] { return 0; };
    std::function<void(int64_t)> start_exchanges = [](int64_t) {};
    int64_t num_exchanges = 0;
  };

  /// `memory` and the tensors must outlive this.
  ZeroGather(Group group, std::vector<GatheredUnit> units, UnitMemory& memory, Options options);

  /// Makes `units` live before an operator reads them; they stay live until the next use().
  void use(const std::vector<int>& units);
  /// Serves the other ranks until all have called it; then no gather is under way.
  void finish(Section section);
  /// Completes the gather under way, so that slices may change.
  void settle();
  /// An operator is about to write, or has written, to live units: this rank's part is copied to its slice before the unit is dropped or
  /// sent.
  void mark_written(const std::vector<int>& units);
  /// Copies writes to whole units into the slices, without exchange; while all are held, their present values. Call after settle().
  void keep_writes();
  /// Checksums of the units written since forget_writes(), at the time when their slices were copied; 0 for others. After a hold_all() that
  /// ended: of all units.
  std::vector<int64_t> written_checksums() const;
  /// Whether the unit was written to since forget_writes().
  bool was_written(int unit) const { return states_[static_cast<size_t>(unit)].was_written; }
  void forget_writes();
  /// Drops whole units, including writes to them, because slices changed. Call after settle() or finish().
  void weights_changed();
  /// Makes all units live until release_all() or weights_changed(). Call after finish().
  void hold_all();
  /// Keeps what the program wrote to the units meanwhile.
  void release_all();
  bool holds_all() const { return held_; }

  bool is_live(int unit) const { return states_[static_cast<size_t>(unit)].live; }
  int64_t live_bytes() const;
  int64_t num_gathers() const { return num_gathers_; }
  /// Gathers that were requested when needed, instead of prefetched.
  int64_t num_unforeseen() const { return num_unforeseen_; }
  double waited_seconds() const { return waited_seconds_; }

 private:
  static constexpr int64_t kNeeds = 0;  ///< Kind of a header that requests a unit; else a Section.

  struct State {
    bool live = false;
    bool is_unkept = false;    ///< Written to since its slice was copied.
    bool was_written = false;  ///< Since forget_writes().
    int64_t checksum = 0;
    uint64_t last_use = 0;
  };
  /// A started gather.
  struct Outstanding {
    int unit = -1;
    at::Tensor headers;  ///< {ranks, kHeaderSize}.
    at::Tensor output;   ///< The unit's whole, or scratch where it is live already.
    std::unique_ptr<Pending> headers_pending, data_pending;
  };

  void bring(int unit);
  bool ask(int64_t kind, int unit);
  void begin(int unit, at::Tensor headers, std::unique_ptr<Pending> headers_pending);
  void begin_promised(int unit);
  void complete();
  at::Tensor header(int64_t kind, int unit) const;
  int promise(int after) const;
  std::vector<int> expected_units() const;
  void make_room(int64_t bytes);
  void drop(int unit);
  void keep(int unit);
  int64_t bytes_of(int unit) const { return static_cast<int64_t>(units_[static_cast<size_t>(unit)].whole.storage().nbytes()); }
  bool in_use(int unit) const;

  Group group_;
  std::vector<GatheredUnit> units_;
  UnitMemory& memory_;
  Options options_;
  UsePredictor predictor_;
  std::vector<State> states_;
  std::vector<int> in_use_;  ///< By the operator that is about to run; never dropped.
  Outstanding outstanding_;
  int wanted_ = -1;  ///< Awaited by bring().
  bool draining_ = false, held_ = false, irregular_ = false;
  int64_t serving_ = kNeeds;  ///< kNeeds while this rank computes, a Section while it only serves others.
  uint64_t clock_ = 0;
  int64_t num_gathers_ = 0, num_unforeseen_ = 0;
  double waited_seconds_ = 0;
};

}  // namespace cohort
