#pragma once
// Seconds between two moments, and of waiting.

#include <algorithm>
#include <chrono>

namespace cohort {

/// Seconds from `start` on until now.
template <typename Clock>
double seconds_since(std::chrono::time_point<Clock> start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Of a clock that never goes back; only differences mean something.
inline double steady_seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// How long somebody has waited who looks again and again: time in which this process did not run counts as a moment. It was stopped then
/// (SIGSTOP, Ctrl-Z, a machine that slept), and so perhaps were those that it waits for. Look more often than once in kMostSeconds.
class AwakeTimer {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr double kMostSeconds = 1;

  explicit AwakeTimer(Clock::time_point now = Clock::now()) : last_(now) {}
  /// Since construction, or the last restart(). A look.
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
