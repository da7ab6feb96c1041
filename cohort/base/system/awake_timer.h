#pragma once

#include <algorithm>
#include <chrono>

namespace cohort {

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
