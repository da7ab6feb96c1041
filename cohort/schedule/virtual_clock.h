#pragma once
// The clock of --virtual: an event queue, the speeds, pauses and deaths of simulated workers, and the server's link. Independent of
// training. Deterministic: random numbers are hashes of (seed, worker, number of draws). Torch-free.

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
  int64_t serial = 0;  ///< Orders simultaneous events as scheduled.
  int kind = 0;        ///< Defined by the caller.
  int worker = 0;
  bool operator<(const VirtualEvent& other) const { return seconds != other.seconds ? seconds < other.seconds : serial < other.serial; }
};

/// One thread.
class VirtualClock {
 public:
  VirtualClock(const VirtualSpec& spec, uint64_t seed);

  double now() const { return now_; }
  /// Speed of a worker relative to the median.
  double speed(int worker) const { return speeds_[static_cast<size_t>(worker)]; }

  /// Schedules an event in `seconds`.
  void schedule(double seconds, int kind, int worker);
  /// Drops the worker's events.
  void cancel(int worker);
  /// Removes the next event and advances now() to it; none where nothing is scheduled.
  std::optional<VirtualEvent> next();
  /// Time of the next event.
  std::optional<double> next_event_seconds() const;
  /// Advances the time without events. Not negative.
  void advance(double seconds) { now_ += seconds; }

  /// Duration of work that takes `seconds` at speed 1, with the pauses within it, which are drawn now.
  double work(int worker, double seconds);
  /// Seconds until the worker dies, drawn at each call; none where workers do not die.
  std::optional<double> lifetime(int worker);

  enum Direction { kToWorkers, kToServer };
  struct Transfer {
    double begin = 0, end = 0;  ///< Relative to now: when the first byte is sent and the last arrives.
  };
  /// The server's link carries one message at a time in each direction, in the order of these calls; latency does not occupy it.
  Transfer send(Direction direction, int64_t bytes);
  /// Without waiting for the link.
  double transfer_seconds(int64_t bytes) const;

  Json state() const;
  /// Restores a state() with the same spec and seed. Error(kBadInput) beginning with `where`.
  void load(const Json& state, const std::string& where);

 private:
  struct Worker {
    int64_t num_lives = 0, num_pauses = 0;
    double until_pause = 0;  ///< Compute time.
  };
  double exponential(int stream, int worker, int64_t index, double mean) const;

  VirtualSpec spec_;
  uint64_t seed_;
  double now_ = 0, free_[2] = {0, 0};  // Per direction of the link.
  int64_t serial_ = 0;
  std::vector<double> speeds_;
  std::vector<Worker> workers_;
  std::set<VirtualEvent> events_;
};

}  // namespace cohort
