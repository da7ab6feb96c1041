#pragma once
// Sharded weights that are whole while they are used: ZeRO stage 3's half of the work. See zero_gather.cpp for the protocol.

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

// Learns in which order things are used, to know what comes next. No LibTorch.
//
// A table from the last two events to the one that followed them when they were last seen. Training (forward and backward differ in the
// event), accumulation and evaluation can alternate: each leaves its own entries. A step that repeats the one before it is predicted from
// its second event on; what is not predictable costs only what a wrong guess costs.

class UsePredictor {
 public:
  /// The end of a step: predictions do not go beyond it.
  static constexpr int kEnd = -1;

  /// An event, >= 0 or kEnd. One that repeats the last one is ignored.
  void note(int event);
  /// The events expected next, in order: at most `count`, fewer where nothing is known or the step ends.
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
  at::Tensor slice;  ///< This rank's elements: always there.
  at::Tensor whole;  ///< All elements; its storage has memory only while the unit is live. {ranks x slice}.
};

/// What a rank does when it has no more use for weights for now.
enum class Section : int64_t { kPass = 1, kEvaluation = 2 };

/// One per model and rank; one thread at a time. Units may lie on a device; headers do not. All calls but use() are collective; use() is
/// answered by whatever the other ranks do next: their own use(), finish(), or update. Ranks may use units in any order, each its own;
/// equal orders are served ahead of use.
class ZeroGather {
 public:
  struct Options {
    int64_t live_bytes = 0;  ///< Whole units held at a time, unless one operator needs more.
    /// How many gradient exchanges this rank could start, and starting those up to a count that all ranks have reached: exchanges of
    /// gradients fall between gathers in the same place on all ranks.
    std::function<int64_t()> num_ready = [] { return 0; };
    std::function<void(int64_t)> start_exchanges = [](int64_t) {};
    int64_t num_exchanges = 0;
  };

  /// `memory` and the tensors must outlive it.
  ZeroGather(Group group, std::vector<GatheredUnit> units, UnitMemory& memory, Options options);

  /// Makes `units` live, before an operator reads them; they stay live until the next use().
  void use(const std::vector<int>& units);
  /// Serves the other ranks until all have called it: then no gather is under way.
  void finish(Section section);
  /// Completes what is under way, so that slices may change.
  void settle();
  /// An operator is about to write to live units, or the program has: this rank's part goes to its slice before the unit is dropped or
  /// sent.
  void mark_written(const std::vector<int>& units);
  /// What was written to whole units goes to the slices, without exchange; while all are held, what they hold now. Call after settle().
  void keep_writes();
  /// Checksums of the units that were written here since forget_writes(), as they were when their slices were taken; 0 for the others.
  /// After a hold_all() that ended: of all units.
  std::vector<int64_t> written_checksums() const;
  /// Whether this rank's slice of a unit was written to since forget_writes().
  bool was_written(int unit) const { return states_[static_cast<size_t>(unit)].was_written; }
  void forget_writes();
  /// Slices changed: whole units are dropped, with what was written to them. Call after settle() or finish().
  void weights_changed();
  /// Makes all units live until release_all() or weights_changed(). Call after finish().
  void hold_all();
  /// What the program wrote to the units meanwhile is kept.
  void release_all();
  bool holds_all() const { return held_; }

  bool is_live(int unit) const { return states_[static_cast<size_t>(unit)].live; }
  int64_t live_bytes() const;
  int64_t num_gathers() const { return num_gathers_; }
  /// Gathers that had to be asked for, instead of being under way when their unit was needed.
  int64_t num_unforeseen() const { return num_unforeseen_; }
  double waited_seconds() const { return waited_seconds_; }

 private:
  static constexpr int64_t kNeeds = 0;  ///< The kind of a header that asks for a unit; else a Section.

  struct State {
    bool live = false;
    bool is_unkept = false;    ///< Written to since its slice was taken.
    bool was_written = false;  ///< Since forget_writes().
    int64_t checksum = 0;
    uint64_t last_use = 0;
  };
  /// A gather that has been started.
  struct Outstanding {
    int unit = -1;
    at::Tensor headers;  ///< {ranks, kHeaderSize}.
    at::Tensor output;   ///< The unit's whole, or scratch where that is live already.
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
  std::vector<int> in_use_;  ///< Of the operator that is about to run: never dropped.
  Outstanding outstanding_;
  int wanted_ = -1;  ///< What bring() waits for.
  bool draining_ = false, held_ = false, irregular_ = false;
  int64_t serving_ = kNeeds;  ///< kNeeds while this rank works, the Section while it only serves the others.
  uint64_t clock_ = 0;
  int64_t num_gathers_ = 0, num_unforeseen_ = 0;
  double waited_seconds_ = 0;
};

}  // namespace cohort
