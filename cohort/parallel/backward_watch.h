#pragma once
// How backward() calls end: by returning, or by an exception, which no hook of LibTorch tells.
//
// A callback queued with the engine runs where a backward() returns. It holds a token; where an exception ends the backward() the engine
// drops the callback unused, and the token's end says so. Seen from a backward's first gradient on: one that fails before is not seen.

#include <functional>
#include <memory>

namespace cohort {

/// One thread, but for enter(), which gradient hooks of a device's thread may call.
class BackwardWatch {
 public:
  /// `at_end` runs inside each backward() that was entered, after its last gradient.
  explicit BackwardWatch(std::function<void()> at_end);
  ~BackwardWatch();
  BackwardWatch(const BackwardWatch&) = delete;

  /// From a gradient's hook. True for the first one of a backward(), which is watched from then on.
  bool enter();
  /// Whether an exception ended a backward() that was entered, since clear().
  bool has_failed() const;
  void clear();

 private:
  struct Record;
  struct Token;
  std::shared_ptr<Record> record_;
};

}  // namespace cohort
