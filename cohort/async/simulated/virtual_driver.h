#pragma once
// Simulated workers under the virtual clock: AsyncDriver for modes without synchronization and for a quorum (async_driver.cpp), StepRounds
// and LocalRounds for workers that wait for each other (round_drivers.cpp). Gradients are really computed; only time is simulated.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cohort/async/async_mode.h"
#include "cohort/async/async_statistics.h"
#include "cohort/async/local_server.h"
#include "cohort/base/text/json.h"
#include "cohort/data/tickets.h"
#include "cohort/job/update_rule.h"
#include "cohort/schedule/virtual_clock.h"

namespace cohort {

/// What drives the workers; owned by the caller.
struct VirtualContext {
  const VirtualSpec& spec;
  VirtualClock& clock;
  Tickets& queue;
  AsyncMode* mode;  ///< Null for LocalRounds.
  AsyncStatistics& statistics;
  std::function<TicketResult(const Ticket&, double rate)> compute;  ///< Forward and backward of an item.
  std::function<StepNumbers()> numbers;                             ///< Learning rate and clipping of the current step.
  std::function<double(int64_t step)> learning_rate_at;             ///< Learning rate of a step, from 0.
  std::function<double(const Ticket&)> item_seconds;                ///< Simulated computing time of an item at speed 1.
  int64_t most_ahead = -1;                                          ///< Staleness bound in steps; see Tickets::take().
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

/// How AsyncDriver merges pushes in exchanges of a quorum.
struct QuorumPolicy {
  const torch::nn::Module& module;  ///< On which items are computed.
  UpdateRule rule;                  ///< Of each worker's own optimizer.
  LocalServer& server;              ///< The mode.
  QuorumGate gate;
};

/// Workers that do not wait for each other, or, with a quorum, train H steps locally between exchanges. One thread.
class AsyncDriver : public VirtualDriver {
 public:
  explicit AsyncDriver(VirtualContext context, std::optional<QuorumPolicy> quorum = std::nullopt);

  void begin() override;
  std::optional<AppliedPush> run_next() override;
  double waiting_seconds(int worker) const override;
  void wake() override;

  Json state() const override;
  std::vector<FlatPiece> saved_pieces() override;
  std::vector<FlatPiece> loaded_pieces(const Json& state, const std::string& where) override;
  void loaded() override;

 private:
  struct Worker {
    std::optional<Assignment> assignment;
    std::optional<double> idle_since;        // Found no work.
    std::optional<double> pushed_since;      // With a quorum: its push waits for the exchange.
    bool is_alive = true;                    // With a quorum.
    std::unique_ptr<LocalWorker> trainer{};  // With a quorum.
  };
  Worker& worker_at(int worker) { return workers_[static_cast<size_t>(worker)]; }
  void start_worker(int worker);
  void take_item(int worker);
  void compute(Worker& worker, Assignment& assignment);
  void send_push(int worker);
  std::optional<AppliedPush> on_push(int worker);
  void on_death(int worker);
  bool others_pending() const;
  AppliedPush merge();
  std::vector<FlatPiece> optimizers();
  Json assignments_state() const;
  std::vector<FlatPiece> load_assignments(const Json& state, const std::string& where);

  std::optional<QuorumPolicy> quorum_;
  std::vector<Worker> workers_;
  std::set<std::pair<double, int>> idle_;            // Since when, and which worker.
  std::vector<std::pair<int, at::Tensor>> loading_;  // Packed assignments by worker.
};

/// sync=step: all workers compute their shares of a step from one version and wait for the slowest. The mode must be a GradientServer:
/// gradients are summed and applied as one push of the whole step. One thread.
class StepRounds : public VirtualDriver {
 public:
  explicit StepRounds(VirtualContext context) : VirtualDriver(std::move(context)) {}

  std::optional<AppliedPush> run_next() override;
  /// The job restarts from here when a worker dies.
  std::vector<FlatPiece> saved_pieces() override;

 private:
  void advance(double seconds);

  double since_checkpoint_seconds_ = 0;  // Work that a death would undo.
};

/// sync=local and diloco: all workers train H steps locally and wait for the slowest at the exchange, with fragments at that of each
/// fragment. One thread.
class LocalRounds : public VirtualDriver {
 public:
  /// `steps`: of a round, H.
  LocalRounds(VirtualContext context, LocalModels& models, int64_t steps)
      : VirtualDriver(std::move(context)), models_(models), steps_(steps) {}

  /// A whole round as one push of all its samples.
  std::optional<AppliedPush> run_next() override;

  Json state() const override;
  std::vector<FlatPiece> loaded_pieces(const Json& state, const std::string& where) override;

 private:
  /// A worker's items up to an exchange.
  struct WorkerSteps {
    std::vector<Ticket> items;
    double seconds = 0;     // Computing time.
    bool completes = true;  // Does not die before.
    int64_t num_samples() const;
  };
  /// Sums over a round.
  struct Round {
    double loss = 0;  // Over samples.
    int64_t trained_samples = 0, all_samples = 0, steps = 0, last_step = 0;
    double gradient_norm = 0;
  };
  std::vector<WorkerSteps> take_items(int64_t steps);
  void advance_to(double moment, std::vector<WorkerSteps>& all);
  double advance_to_exchange(std::vector<WorkerSteps>& all);
  void run_fragment(int fragment, int64_t steps, Round& round);
  void compute(int fragment, const std::vector<WorkerSteps>& all, Round& round);

  LocalModels& models_;
  int64_t steps_;
  std::set<int> absent_;  // Workers that died and have not restarted.
};

}  // namespace cohort
