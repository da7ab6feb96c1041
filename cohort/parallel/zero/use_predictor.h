#pragma once
// Learns in which order things are used, to know what comes next. No LibTorch.
//
// A table from the last two events to the one that followed them when they were last seen. Training (forward and backward differ in the
// event), accumulation and evaluation can alternate: each leaves its own entries. A step that repeats the one before it is predicted from
// its second event on; what is not predictable costs only what a wrong guess costs.

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace cohort {

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

}  // namespace cohort
