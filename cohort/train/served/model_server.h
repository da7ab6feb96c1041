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

#include "cohort/base/text/json_fwd.h"
#include "cohort/data/tickets.h"
#include "cohort/train/async/accounts.h"
#include "cohort/train/async/async_mode.h"
#include "cohort/train/async/local_server.h"
#include "cohort/train/async/round_gate.h"
#include "cohort/train/served/pushes_on_the_way.h"
#include "cohort/train/served/served_words.h"
#include "cohort/train/served/server_team.h"
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
  size_t most_in_hand = 1;                         ///< Tickets of a worker.
  std::string weights;                             ///< Their address, where workers write into them; else "".
  std::string fingerprint;                         ///< Of its data, for those who join.
  bool may_join = false;                           ///< Others than these may come, and get the next number.
  int num_workers = 1;
  std::function<bool(int worker)> may_come;  ///< Whether one of which nothing was heard may be on its way.
  LocalServer* rounds = nullptr;             ///< Not null: the mode; pushes are merged, those of a quorum and more at a time,
  RoundGate gate{1, 0};                      ///< when this says so.
  ServerTeam* team = nullptr;                ///< Not null: other servers have parts of the model.
  /// What one of them had when team->show(number) was called.
  std::function<void(int server, int64_t number, const Json& state, const std::string& data)> shown;
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
  /// The last step is over: what comes from now on is not applied, while other servers are still to show what they have.
  void close() { holds_ = is_closed_ = true; }

 private:
  void hear(PeerId peer, const std::string& name, const PeerMessage& message);
  void tell_what_to_join(PeerId peer);
  void give_number(PeerId peer, const std::string& name);
  void welcome(PeerId peer, const Json& said);
  void hear_server(int server, const Json& said, const PeerMessage& message, const std::string& where);
  void take_push(PeerId peer, const Json& said, const std::string& data, const std::string& where);
  void hand_in(PushedWork pushed);
  void hand_in_if(std::optional<PushedWork> whole);
  void gather(const PushedWork& pushed);
  void gather_round(PushedWork pushed);
  void end_round_if_due();
  bool has_pushed(int worker) const;
  bool others_come() const;
  void apply(PushedWork pushed);
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
  void let_go(PeerId peer);
  void serve_waiting();
  std::string num_workers_here() const;
  bool others_may_come() const;
  void send_work(PeerId peer, const Ticket& ticket);

  ServerParts parts_;
  MessageServer server_;
  struct Slot {
    WorkerSlot memory;
    bool is_used = false;      // The worker found it too.
    bool was_dropped = false;  // Its last push.
  };
  std::map<PeerId, int> worker_of_;  // Who is here.
  std::map<PeerId, Slot> slots_;
  std::multimap<PeerId, Work> works_;     // What each has in hand.
  std::vector<PeerId> waiting_;           // Who is free, in the order in which they asked.
  std::vector<PushedWork> gathered_;      // With stale:0, of the step that is not finished; with a quorum, of the exchange that is to come.
  std::set<int> have_come_;               // Ever.
  std::set<int> lost_;                    // Workers that are not here any more.
  std::set<PeerId> leaving_;              // Workers that go when they have nothing in hand any more.
  std::map<std::string, int> returning_;  // By name, whose new connection has not said yet which worker it is.
  std::map<PeerId, int> promised_;        // Numbers of those who join, by the connection over which they got them.
  int num_numbers_;                       // Given to workers.
  bool holds_ = false, is_closed_ = false;

  // With a team:
  std::map<PeerId, int> servers_;
  PushesOnTheWay on_the_way_;
  int64_t num_orders_ = 0;
};

}  // namespace cohort
