#pragma once
// Elapsed time.

#include <algorithm>
#include <chrono>

namespace cohort {

/// Seconds since `start`.
template <typename Clock>
double seconds_since(std::chrono::time_point<Clock> start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Seconds of a monotonic clock; only differences are meaningful.
inline double steady_seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// How long a poller has waited, without the time in which this process was stopped (SIGSTOP, Ctrl-Z, a suspended machine): peers may have
/// been stopped as well. Poll more often than every kMostSeconds.
class AwakeTimer {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr double kMostSeconds = 1;

  explicit AwakeTimer(Clock::time_point now = Clock::now()) : last_(now) {}
  /// Seconds waited since construction or the last restart(). Counts as a poll.
  double seconds(Clock::time_point now = Clock::now()) {
    seconds_ += std::min(std::chrono::duration<double>(now - last_).count(), kMostSeconds);
    last_ = now;
    return seconds_;
  }
  void restart(Clock::time_point now = Clock::now()) { seconds_ = 0, last_ = now; }

 private:
  Clock::time_point last_;
  double seconds_ = 0;
};

}  // namespace cohort
