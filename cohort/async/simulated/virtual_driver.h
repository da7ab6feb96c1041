#pragma once
// Simulated workers under the virtual clock: asynchronous ones and those with a quorum (async_driver.cpp), and those that wait for each
// other (round_drivers.cpp). Gradients are really computed; only time is simulated.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/async/async_mode.h"
#include "cohort/async/async_statistics.h"
#include "cohort/async/local_server.h"
#include "cohort/base/text/json.h"
#include "cohort/data/work_queue.h"
#include "cohort/job/update_rule.h"
#include "cohort/schedule/virtual_clock.h"

namespace cohort {

/// What drives the workers; owned by the caller.
struct VirtualContext {
  const VirtualSpec& spec;
  VirtualClock& clock;
  WorkQueue& queue;
  AsyncMode* mode;  ///< Null for make_local_rounds().
  AsyncStatistics& statistics;
  std::function<WorkResult(const WorkItem&, double rate)> compute;  ///< Forward and backward of an item.
  std::function<StepNumbers()> numbers;                             ///< Learning rate and clipping of the current step.
  std::function<double(int64_t step)> learning_rate_at;             ///< Learning rate of a step, from 0.
  std::function<double(const WorkItem&)> item_seconds;              ///< Simulated computing time of an item at speed 1.
  int64_t staleness_bound = -1;                                     ///< Staleness bound in steps; see WorkQueue::take().
};

/// One thread.
class VirtualDriver {
 public:
  explicit VirtualDriver(VirtualContext context) : context_(std::move(context)) {}
  virtual ~VirtualDriver() = default;

  /// All workers start. Call once, unless a state is loaded.
  virtual void begin();
  /// Runs the next event, step or round; returns the push if one was applied. Error(kFailed) for a loss that is not finite, and if no step
  /// or round ever completes because workers die too soon.
  virtual std::optional<AppliedPush> run_next() = 0;

  /// How long the worker has been idle or waiting by now; the statistics have only periods that are over.
  virtual double waiting_seconds(int /*worker*/) const { return 0; }
  /// Idle workers ask for work again.
  virtual void wake() {}

  double compute_seconds() const { return compute_seconds_; }  ///< Wall-clock seconds in forward and backward.
  double push_seconds() const { return push_seconds_; }        ///< Wall-clock seconds in pushes and exchanges.

  /// State of the workers for checkpoints, beside the clock's: JSON, and the tensors of outstanding work.
  virtual Json state() const { return nullptr; }
  virtual std::vector<FlatPiece> saved_pieces() { return {}; }
  /// Error(kBadInput) beginning with `where`.
  virtual std::vector<FlatPiece> loaded_pieces(const Json& /*state*/, const std::string& /*where*/) { return {}; }
  virtual void loaded() {}

 protected:
  /// The kinds are saved with the clock's events.
  enum Kind { kIdle, kComputed, kPushArrived, kDeath, kRestart };
  enum RoundKind { kRoundDeath, kRoundRestart };

  void schedule_death(int worker, int kind);
  /// Statistics of a worker in a synchronous exchange, which begins when the slowest has computed.
  void add_exchange(int worker, double computing_seconds, double slowest_seconds, double exchange_seconds);
  /// Duration of a ring all-reduce over links of the workers' own, each as fast as the server's in other modes: 2 (N - 1) messages of
  /// bytes / N, one after the other.
  double ring_seconds(int64_t num_bytes) const {
    const int64_t workers = context_.spec.workers;
    return static_cast<double>(2 * (workers - 1)) * context_.clock.transfer_seconds(num_bytes / workers);
  }
  /// Bytes sent in it by all workers together.
  int64_t ring_bytes(int64_t num_bytes) const { return int64_t{2} * (context_.spec.workers - 1) * num_bytes; }

  VirtualContext context_;
  double compute_seconds_ = 0, push_seconds_ = 0;
};

/// Merges pushes in exchanges of a quorum.
struct QuorumPolicy {
  const torch::nn::Module& module;  ///< On which items are computed.
  UpdateRule rule;                  ///< Of each worker's own optimizer.
  LocalServer& server;              ///< The mode.
  QuorumGate gate;
};

/// Workers that do not wait for each other, or, with a quorum, train H steps locally between exchanges.
std::unique_ptr<VirtualDriver> make_async_driver(VirtualContext context, std::optional<QuorumPolicy> quorum = std::nullopt);

/// sync=step: all workers compute their shares of a step from one version and wait for the slowest. The mode must be a GradientServer:
/// gradients are summed and applied as one push of the whole step.
std::unique_ptr<VirtualDriver> make_step_rounds(VirtualContext context);

/// sync=local and diloco: all workers train `steps` steps of a round locally and wait for the slowest at the exchange, with fragments at
/// that of each fragment. A round is one push of all its samples.
std::unique_ptr<VirtualDriver> make_local_rounds(VirtualContext context, LocalModels& models, int64_t steps);

}  // namespace cohort
