#pragma once
// A worker of a training whose workers do not wait for one another: it asks for a ticket, computes it on the version that comes with it,
// hands over the gradient, and asks again.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/base/text/json_fwd.h"
#include "cohort/job/injected_faults.h"
#include "cohort/train/async/async_mode.h"
#include "cohort/train/served/served_words.h"
#include "cohort/train/served/worker_slot.h"
#include "cohort/world/messages/message_client.h"

namespace cohort {

struct ServedWorkerOptions {
  int worker = 0;
  std::string hello;  ///< What must be the same on all, for the server to compare.
  Injection injection;
  double timeout_seconds = 60;
  int most_in_hand = 1;                      ///< Tickets; the weights of those after the first travel while it is computed.
  std::function<void()> between_tickets;     ///< Also at least every 50 ms while it waits; empty for none.
  std::function<void(int64_t step)> pushed;  ///< After each push, with the step (from 1) that it is of; empty for none.
  std::function<bool()> leaves;              ///< Whether it is to go, asked between two tickets; empty for never.
  /// Where several servers divide the model: which has each trained parameter (async/server_parts.h), and how to talk to one from 1 on.
  std::vector<int> servers;
  std::function<MessageClient(const ServerPlace& place, int server)> client_of;
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
  /// A server and its tensors of the model.
  struct Link {
    MessageClient client;
    WorkerSlot slot;                 // Of this connection; none where data travel with the messages.
    std::vector<at::Tensor> pulled;  // Where they are here.
  };
  template <typename Talk>
  auto over(Link& link, const Talk& talk);
  std::vector<at::Tensor> pulled_from(int server) const;
  std::vector<at::Tensor> handed_to(int server) const;
  void meet(const Welcome& welcome);
  void meet_server(const ServerPlace& place, int server);
  void take_part(Link& link, int64_t order);
  std::string pack_for(const Link& link, const std::vector<at::Tensor>& tensors, std::vector<size_t>& missing) const;
  void come_in(double timeout_seconds);
  Json hello() const;
  void ask();
  std::optional<std::string> obey();
  std::optional<std::string> last_word();
  void work(const WorkOrder& order, const std::string& data);
  bool leaves();
  void tell_failure(int code, const std::string& text);

  WorkerSide& side_;
  TicketSource source_;
  ServedWorkerOptions options_;
  Link first_;                // Rank 0.
  std::vector<Link> others_;  // From server 1 on.
  int64_t num_pushes_ = 0;
  bool said_leaving_ = false;
  double waits_since_ = 0, send_seconds_ = 0;  // The latter: of the last push.
};

}  // namespace cohort
