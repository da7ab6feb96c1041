#pragma once
// Workers of the virtual clock that do not wait for one another: what each does when.

#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "cohort/base/text/json_fwd.h"
#include "cohort/data/tickets.h"
#include "cohort/schedule/virtual_clock.h"
#include "cohort/train/async/accounts.h"
#include "cohort/train/async/async_mode.h"
#include "cohort/train/async/ticket_work.h"

namespace cohort {

/// What drives the workers, all of it the caller's.
struct VirtualParts {
  const VirtualSpec& spec;
  VirtualClock& clock;
  Tickets& tickets;
  AsyncMode* mode;  ///< Null for LocalRounds.
  TicketWork& ticket_work;
  Accounts& accounts;
  std::function<StepNumbers()> numbers;             ///< Of the step that is being made now.
  std::function<double(int64_t step)> rate_of;      ///< The learning rate of a step, from 0.
  std::function<double(const Ticket&)> seconds_of;  ///< Forward and backward at speed 1.
  int64_t most_ahead = -1;                          ///< Steps, see Tickets::take().
};

/// One thread.
class VirtualWorkers {
 public:
  explicit VirtualWorkers(VirtualParts parts);

  /// All are free, and alive. Once, unless a state is loaded.
  void begin();
  /// What happens next; the push, where one was applied. Error(kFailed) for a loss that is not finite.
  std::optional<AppliedPush> act();

  /// Those that wait ask again, if there is a ticket.
  void wake();
  /// Since the worker found no ticket; of waiting that is over the accounts know.
  double waiting_seconds(int worker) const;

  double compute_seconds() const { return compute_seconds_; }  ///< Real ones, in forward and backward,
  double push_seconds() const { return push_seconds_; }        ///< and in pushes.

  std::vector<FlatPiece> saved_pieces() const;
  Json state() const;
  /// Error(kBadInput) beginning with `where`.
  std::vector<FlatPiece> loaded_pieces(const Json& state, const std::string& where);
  void loaded();

 private:
  enum Kind { kFree, kComputed, kArrived, kDies, kReturns };
  struct Worker {
    std::optional<Work> work;
    std::optional<double> waits_since;
  };
  Worker& of(int worker) { return workers_[static_cast<size_t>(worker)]; }
  void take(int worker);
  void send(int worker);
  std::optional<AppliedPush> arrive(int worker);
  void die(int worker);
  void come_alive(int worker);

  VirtualParts parts_;
  std::vector<Worker> workers_;
  std::set<std::pair<double, int>> waiting_;  // Since when, and who.
  double compute_seconds_ = 0, push_seconds_ = 0;
  std::vector<std::pair<int, at::Tensor>> being_loaded_;  // Bytes of the work of a worker.
};

}  // namespace cohort
