#pragma once
// What the workers of the virtual clock do, and when: one driver a way of synchronising. Those that do not wait are in virtual_workers.cpp,
// those that do in rounds.cpp.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cohort/async/accounts.h"
#include "cohort/async/async_mode.h"
#include "cohort/async/local_server.h"
#include "cohort/base/text/json.h"
#include "cohort/data/tickets.h"
#include "cohort/job/update_rule.h"
#include "cohort/schedule/virtual_clock.h"

namespace cohort {

// What the workers of the virtual clock do, and when: one driver a way of synchronising, each a file beside this one.

/// What drives the workers, all of it the caller's.
struct VirtualParts {
  const VirtualSpec& spec;
  VirtualClock& clock;
  Tickets& tickets;
  AsyncMode* mode;  ///< Null for LocalRounds.
  Accounts& accounts;
  std::function<TicketResult(const Ticket&, double rate)> compute;  ///< Forward and backward, as TicketWork has them.
  std::function<StepNumbers()> numbers;                             ///< Of the step that is being made now.
  std::function<double(int64_t step)> rate_of;                      ///< The learning rate of a step, from 0.
  std::function<double(const Ticket&)> seconds_of;                  ///< Forward and backward at speed 1.
  int64_t most_ahead = -1;                                          ///< Steps, see Tickets::take().
};

/// One thread.
class VirtualDriver {
 public:
  explicit VirtualDriver(VirtualParts parts) : parts_(std::move(parts)) {}
  virtual ~VirtualDriver() = default;

  /// All workers are free, and alive. Once, unless a state is loaded.
  virtual void begin() = 0;
  /// What happens next; the push, where one was applied. Error(kFailed) for a loss that is not finite.
  virtual std::optional<AppliedPush> act() = 0;

  /// Since the worker found nothing to do; of waiting that is over the accounts know.
  virtual double waiting_seconds(int /*worker*/) const { return 0; }
  /// Those that found nothing to do ask again.
  virtual void wake() {}

  double compute_seconds() const { return compute_seconds_; }  ///< Real ones, in forward and backward,
  double push_seconds() const { return push_seconds_; }        ///< and in pushes and exchanges.

  /// What a checkpoint keeps of the workers beside the clock: text, and tensors of work in flight.
  virtual Json state() const { return nullptr; }
  virtual std::vector<FlatPiece> saved_pieces() { return {}; }
  /// Error(kBadInput) beginning with `where`.
  virtual std::vector<FlatPiece> loaded_pieces(const Json& /*state*/, const std::string& /*where*/) { return {}; }
  virtual void loaded() {}

 protected:
  /// Of a ring all-reduce among all workers over links of their own, each as fast as the server's in other modes: 2 (N - 1) messages of
  /// bytes / N one after the other.
  double ring_seconds(int64_t num_bytes) const {
    const int64_t workers = parts_.spec.workers;
    return static_cast<double>(2 * (workers - 1)) * parts_.clock.transfer_seconds(num_bytes / workers);
  }
  /// What all of them send in it together.
  int64_t ring_bytes(int64_t num_bytes) const { return int64_t{2} * (parts_.spec.workers - 1) * num_bytes; }

  VirtualParts parts_;
  double compute_seconds_ = 0, push_seconds_ = 0;
};

// Workers of the virtual clock that do not wait for one another: what each does when.

/// One thread.
class VirtualWorkers : public VirtualDriver {
 public:
  explicit VirtualWorkers(VirtualParts parts);

  void begin() override;
  std::optional<AppliedPush> act() override;
  double waiting_seconds(int worker) const override;
  void wake() override;

  Json state() const override;
  std::vector<FlatPiece> saved_pieces() override;
  std::vector<FlatPiece> loaded_pieces(const Json& state, const std::string& where) override;
  void loaded() override;

 protected:
  enum Kind { kFree, kComputed, kArrived, kDies, kReturns };
  /// What the worker hands over later.
  virtual void compute(int worker, Work& work);
  virtual std::optional<AppliedPush> arrive(int worker);
  virtual void die(int worker);
  virtual void come_alive(int worker);

  bool has_work(int worker) const { return workers_[static_cast<size_t>(worker)].work.has_value(); }
  Work& work_of(int worker) { return *of(worker).work; }
  void drop_work(int worker) { of(worker).work.reset(); }
  /// Found no ticket.
  bool is_waiting(int worker) const { return workers_[static_cast<size_t>(worker)].waits_since.has_value(); }

 private:
  struct Worker {
    std::optional<Work> work;
    std::optional<double> waits_since;
  };
  Worker& of(int worker) { return workers_[static_cast<size_t>(worker)]; }
  void take(int worker);
  void send(int worker);

  std::vector<Worker> workers_;
  std::set<std::pair<double, int>> waiting_;              // Since when, and who.
  std::vector<std::pair<int, at::Tensor>> being_loaded_;  // Bytes of the work of a worker.
};

// sync=local and diloco with a quorum under the virtual clock: workers train by themselves for H steps, and an exchange takes place with
// those that have handed over when the quorum and the grace time are over.

/// One thread.
class QuorumWorkers : public VirtualWorkers {
 public:
  /// `module`: the one that tickets are computed on; `server` is the mode.
  QuorumWorkers(VirtualParts parts, const torch::nn::Module& module, const UpdateRule& rule, LocalServer& server, RoundGate gate);

  std::optional<AppliedPush> act() override;
  double waiting_seconds(int worker) const override;

  Json state() const override;
  std::vector<FlatPiece> saved_pieces() override;
  std::vector<FlatPiece> loaded_pieces(const Json& state, const std::string& where) override;
  void loaded() override;

 protected:
  void compute(int worker, Work& work) override;
  std::optional<AppliedPush> arrive(int worker) override;
  void die(int worker) override;
  void come_alive(int worker) override;

 private:
  struct Learner {
    std::unique_ptr<LocalWorker> trainer;
    bool is_there = true;                     // Not dead.
    std::optional<double> handed_over_since;  // Its work waits for the exchange.
  };
  bool others_come() const;
  AppliedPush merge();
  std::vector<FlatPiece> optimizers();

  const torch::nn::Module& module_;
  UpdateRule rule_;
  LocalServer& server_;
  RoundGate gate_;
  std::vector<Learner> learners_;
};

// sync=step under the virtual clock: all workers compute their shares of a step from one version, and wait for the slowest.

/// One thread. The mode must be a GradientServer: gradients are summed and applied as one push of the whole step.
class StepRounds : public VirtualDriver {
 public:
  explicit StepRounds(VirtualParts parts) : VirtualDriver(std::move(parts)) {}

  void begin() override;
  /// A whole step. Error(kFailed) also where no step is ever complete because workers die too soon.
  std::optional<AppliedPush> act() override;
  /// There the job goes back to when a worker dies.
  std::vector<FlatPiece> saved_pieces() override;

 private:
  void pass(double seconds);

  double since_checkpoint_seconds_ = 0;  // Of steps that a death would undo.
};

// sync=local and diloco under the virtual clock: all workers train by themselves for H steps, and wait for the slowest at the exchange;
// with fragments at that of each fragment.

/// One thread.
class LocalRounds : public VirtualDriver {
 public:
  /// `steps`: of a round, H.
  LocalRounds(VirtualParts parts, LocalModels& models, int64_t steps) : VirtualDriver(std::move(parts)), models_(models), steps_(steps) {}

  void begin() override;
  /// A whole round as one push of all its samples. Error(kFailed) also where no worker ends a round.
  std::optional<AppliedPush> act() override;

  Json state() const override;
  std::vector<FlatPiece> loaded_pieces(const Json& state, const std::string& where) override;

 private:
  struct Part {
    std::vector<Ticket> tickets;
    double seconds = 0;  // Of computing them.
    bool ends = true;    // Does not die before.
    int64_t num_samples() const;
  };
  /// What a round adds up to.
  struct Round {
    double loss = 0;  // Sum over samples.
    int64_t trained = 0, asked = 0, steps = 0, last_step = 0;
    double gradient_norm = 0;
  };
  std::vector<Part> take_parts(int64_t steps);
  void live_until(double moment, std::vector<Part>& parts);
  double live(std::vector<Part>& parts);
  void act_part(int fragment, int64_t steps, Round& round);
  void compute(int fragment, const std::vector<Part>& parts, Round& round);

  LocalModels& models_;
  int64_t steps_;
  std::set<int> absent_;  // Workers that died and are not back.
};

}  // namespace cohort
