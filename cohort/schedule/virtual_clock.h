#pragma once
// The clock of --virtual: an event queue, the speeds, pauses and deaths of workers that are made up, and the server's link. Knows nothing
// of training. The same numbers at every run: all that is random is a hash of (seed, worker, how many were drawn before). Torch-free.

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cohort/base/text/json_fwd.h"
#include "cohort/job/specs/virtual_spec.h"

namespace cohort {

struct VirtualEvent {
  double seconds = 0;
  int64_t serial = 0;  ///< Events of one moment come in the order in which they were scheduled.
  int kind = 0;        ///< The caller's.
  int worker = 0;
  bool operator<(const VirtualEvent& other) const { return seconds != other.seconds ? seconds < other.seconds : serial < other.serial; }
};

/// One thread.
class VirtualClock {
 public:
  VirtualClock(const VirtualSpec& spec, uint64_t seed);

  double now() const { return now_; }
  /// Of a worker: 2 is twice as fast as the median.
  double speed(int worker) const { return speeds_[static_cast<size_t>(worker)]; }

  /// `seconds` from now on.
  void schedule(double seconds, int kind, int worker);
  /// Drops what is scheduled for the worker.
  void cancel(int worker);
  /// Takes the next event, and now() is its moment (or stays, where that has passed); none where nothing is scheduled.
  std::optional<VirtualEvent> next();
  /// When that is.
  std::optional<double> next_moment() const;
  /// For who counts time without events. Not back.
  void advance(double seconds) { now_ += seconds; }

  /// How long the worker takes for what takes `seconds` at speed 1, with the pauses that fall into it, which are drawn now.
  double work(int worker, double seconds);
  /// Seconds until the worker dies, drawn anew at each call; none where workers do not die.
  std::optional<double> lifetime(int worker);

  enum Direction { kToWorkers, kToServer };
  struct Transfer {
    double begin = 0, end = 0;  ///< From now on: when the first byte leaves, and when the last arrives.
  };
  /// The server's link carries one message at a time in each direction, in the order of these calls; its latency keeps it from nothing.
  Transfer send(Direction direction, int64_t bytes);
  /// Of one that need not wait.
  double transfer_seconds(int64_t bytes) const;

  Json state() const;
  /// Of a state() with the same spec and seed. Error(kBadInput) beginning with `where`.
  void load(const Json& state, const std::string& where);

 private:
  struct Worker {
    int64_t num_lives = 0, num_pauses = 0;
    double until_pause = 0;  ///< Computing seconds.
  };
  double exponential(int stream, int worker, int64_t index, double mean) const;

  VirtualSpec spec_;
  uint64_t seed_;
  double now_ = 0, free_[2] = {0, 0};  // When a direction of the link is free.
  int64_t serial_ = 0;
  std::vector<double> speeds_;
  std::vector<Worker> workers_;
  std::set<VirtualEvent> events_;
};

}  // namespace cohort
