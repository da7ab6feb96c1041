#pragma once
// The model of a training whose workers do not wait for one another: hands out tickets and versions, and applies what comes back, in the
// order in which it comes. Workers come, leave, die and come back as they like.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cohort/data/tickets.h"
#include "cohort/train/async/accounts.h"
#include "cohort/train/async/async_mode.h"
#include "cohort/train/served/served_words.h"
#include "cohort/train/served/worker_slot.h"
#include "cohort/world/messages/message_server.h"

namespace cohort {

/// With its real seconds.
struct ServedPush : AppliedPush {
  double push_seconds = 0, computing_seconds = 0;
};

/// What the server needs of the training; all of it the caller's.
struct ServerParts {
  AsyncMode& mode;
  Tickets& tickets;
  Accounts& accounts;
  std::function<StepNumbers()> numbers;            ///< Of the step that is being made now.
  std::function<void(const ServedPush&)> applied;  ///< After each push.
  std::string configuration;                       ///< What workers must have been started with.
  int64_t most_ahead = -1;                         ///< Steps, see Tickets::take().
  std::string fingerprint;                         ///< Of its data, for those who join.
  bool may_join = false;                           ///< Others than these may come, and get the next number.
  int num_workers = 1;
  std::function<bool(int worker)> may_come;  ///< Whether one of which nothing was heard may be on its way.
};

/// One thread at a time.
class ModelServer {
 public:
  ModelServer(ServerParts parts, MessageServer server);

  /// What happens next, waiting for at most `timeout_seconds`. Error(kFailed) where a worker could not go on for a reason that is the
  /// training's: a loss that is not finite, say. One that fails for another is lost.
  void act(double timeout_seconds);
  /// Tells all workers that it is over, and why; "" for a training that came to its end. Waits until they have left, a while.
  void end(const std::string& why);
  /// Gives out no tickets while on; those that wait get theirs afterwards.
  void hold(bool on);

 private:
  struct Pushed {
    int worker = 0;
    Work work;
    double computing_seconds = 0;
  };
  void hear(PeerId peer, const std::string& name, const PeerMessage& message);
  void tell_to_join(PeerId peer, const std::string& name);
  void welcome(PeerId peer, const Json& said);
  void take_push(PeerId peer, const Json& said, const std::string& data, const std::string& where);
  void gather(const Pushed& pushed);
  void apply(Pushed pushed);
  void lose(PeerId peer, const std::string& why);
  void serve_waiting();
  bool others_may_come() const;
  void send_work(PeerId peer, const Ticket& ticket);

  ServerParts parts_;
  MessageServer server_;
  struct Slot {
    WorkerSlot memory;
    bool is_used = false;  // The worker found it too.
  };
  std::map<PeerId, int> worker_of_;  // Who is here.
  std::map<PeerId, Slot> slots_;
  std::map<PeerId, Work> works_;  // What each has in hand.
  std::vector<PeerId> waiting_;   // Who is free, in the order in which they asked.
  std::vector<Pushed> gathered_;  // With stale:0, of the step that is not finished.
  std::set<int> have_come_;       // Ever.
  std::set<int> lost_;            // Workers that are not here any more.
  int num_numbers_;               // Given to workers.
  bool holds_ = false;
};

}  // namespace cohort
