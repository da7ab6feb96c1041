#pragma once
// A worker of a training whose workers do not wait for one another: it asks for a ticket, computes it on the version that comes with it,
// hands over the gradient, and asks again.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/async/async_mode.h"
#include "cohort/async/packed_tensors.h"
#include "cohort/async/served/served_words.h"
#include "cohort/async/ticket_work.h"
#include "cohort/data/tickets.h"
#include "cohort/job/job.h"
#include "cohort/job/specs/injected_faults.h"
#include "cohort/world/messages/message_client.h"

namespace cohort {

struct ServedWorkerOptions {
  int worker = 0;
  std::string hello;  ///< What must be the same on all, for the server to compare.
  Injection injection;
  double timeout_seconds = 60;
  std::function<void()> between_tickets;     ///< Also at least every 50 ms while it waits; empty for none.
  std::function<void(int64_t step)> pushed;  ///< After each push, with the step (from 1) that it is of; empty for none.
  std::function<bool()> leaves;              ///< Whether it is to go, asked between two tickets; empty for never.
};

/// Forward and backward of what was ordered, on what was pulled.
using TicketSource = std::function<HandedOver(const WorkOrder&)>;

/// One thread.
class ServedWorker {
 public:
  /// `side` must outlive it.
  ServedWorker(WorkerSide& side, TicketSource source, MessageClient link, ServedWorkerOptions options);

  /// Until the server says that it is over; returns why, "" for a training that came to its end, and for a worker that left. A connection
  /// that breaks is made again, and the work in hand is thrown away: its ticket has gone to another. Error(kEnvironment) where the server
  /// is gone. What goes wrong here is told to the server first.
  std::string run();

 private:
  struct LostServer {};
  static constexpr double kLookSeconds = 0.05, kComeBackSeconds = 5;
  template <typename Talk>
  auto over_link(const Talk& talk);
  void come_in(double timeout_seconds);
  void ask();
  std::optional<std::string> obey();
  std::optional<std::string> last_word();
  void work(const WorkOrder& order, const std::string& data);
  bool leaves();
  void tell_failure(int code, const std::string& text);

  WorkerSide& side_;
  TicketSource source_;
  MessageClient link_;
  ServedWorkerOptions options_;
  WorkerSlot slot_;  // Of this connection; none where data travel with the messages.
  int64_t num_pushes_ = 0;
  bool said_leaving_ = false;
  double waits_since_ = 0, send_seconds_ = 0;  // The latter: of the last push.
};

// What a worker does with a ticket: one forward and backward, or with local steps all of its steps, each an update of the worker's own.

/// All of it must outlive the source. `total_steps`: of the run, for learning rates.
TicketSource ticket_source(WorkerSide& side, const Tickets& tickets, TicketWork& work, const Job& job, int64_t total_steps);

}  // namespace cohort
