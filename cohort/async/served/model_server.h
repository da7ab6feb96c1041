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

#include "cohort/async/accounts.h"
#include "cohort/async/async_mode.h"
#include "cohort/async/local_server.h"
#include "cohort/async/packed_tensors.h"
#include "cohort/async/served/served_words.h"
#include "cohort/base/text/json_fwd.h"
#include "cohort/data/tickets.h"
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
  LocalServer* rounds = nullptr;             ///< Not null: the mode; pushes are merged, those of a quorum and more at a time,
  RoundGate gate{1, 0};                      ///< when this says so.
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
  void hold(bool on) {
    holds_ = on;
    serve_waiting();
  }

 private:
  /// What a worker handed over.
  struct Pushed {
    PeerId peer = 0;
    int worker = 0;
    Work work;
    double computing_seconds = 0;
  };
  void hear(PeerId peer, const std::string& name, const PeerMessage& message);
  void tell_what_to_join(PeerId peer);
  void give_number(PeerId peer, const std::string& name);
  void welcome(PeerId peer, const Json& said);
  void give_work(PeerId peer, const Json& said, const std::string& name);
  void take_push(PeerId peer, const Json& said, const std::string& data, const std::string& where);
  void gather(const Pushed& pushed);
  void gather_round(Pushed pushed);
  void end_round_if_due();
  bool has_pushed(int worker) const;
  bool others_come() const;
  void apply(Pushed pushed);
  struct Gone {
    int worker = 0;
    bool had_ticket = false;
  };
  std::optional<Gone> forget(PeerId peer);
  void lose(const PeerEvent& event);
  void lose(PeerId peer, const std::string& why);
  void tell_lost(const Gone& gone, const std::string& why);
  void replace(PeerId peer, const std::string& name);
  void let_go_if_done(PeerId peer);
  void serve_waiting();
  std::string num_workers_here() const;
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
  std::map<PeerId, Work> works_;          // What each has in hand.
  std::vector<PeerId> waiting_;           // Who is free, in the order in which they asked.
  std::vector<Pushed> gathered_;          // With stale:0, of the step that is not finished; with a quorum, of the exchange that is to come.
  std::set<int> have_come_;               // Ever.
  std::set<int> lost_;                    // Workers that are not here any more.
  std::set<PeerId> leaving_;              // Workers that leave when they have nothing in hand any more.
  std::map<std::string, int> returning_;  // By name, whose new connection has not said yet which worker it is.
  std::map<PeerId, int> promised_;        // Numbers of those who join, by the connection over which they got them.
  int num_numbers_;                       // Given to workers.
  bool holds_ = false;
};

}  // namespace cohort
