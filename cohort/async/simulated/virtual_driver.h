#pragma once
// What the workers of the virtual clock do, and when: one driver a way of synchronising, each a file beside this one.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cohort/async/accounts.h"
#include "cohort/async/async_mode.h"
#include "cohort/base/text/json.h"
#include "cohort/data/tickets.h"
#include "cohort/schedule/virtual_clock.h"

namespace cohort {

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

}  // namespace cohort
