#pragma once
// The parameter server of an asynchronous training: hands out work items and versions, and applies pushes in the order of their arrival.
// Workers may join, leave, be lost and reconnect at any time. model_server.cpp has the protocol.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cohort/async/async_training.h"
#include "cohort/async/packed_tensors.h"
#include "cohort/base/text/json_fwd.h"
#include "cohort/world/messages/message_server.h"

namespace cohort {

struct Hello;
struct JoinQuery;
struct JoinReady;
struct LeaveRequest;
struct WorkDone;
struct WorkerFailure;
struct WorkRequest;

/// An applied push with its wall-clock seconds.
struct ServedPush : AppliedPush {
  double push_seconds = 0, computing_seconds = 0;
};

struct ModelServerOptions {
  std::function<void(const ServedPush&)> applied;  ///< Called after each push.
  std::string configuration;                       ///< Workers must have been started with the same.
  std::string fingerprint;                         ///< Of the data, for processes that join; "": none may.
  int num_workers = 1;
  std::function<bool(int worker)> may_connect;  ///< True if a worker that has not connected may still do so.
};

/// One thread at a time.
class ModelServer {
 public:
  /// `training` must outlive it.
  ModelServer(AsyncTraining& training, ModelServerOptions options, MessageServer server);

  /// Handles the next event, waiting at most `timeout_seconds`. Error(kFailed) if a worker reports that the training itself failed, such as
  /// by a loss that is not finite; a worker that fails otherwise is lost.
  void poll(double timeout_seconds);
  /// Tells all workers that the training has ended, and why ("" if completed); waits a while until they have left.
  void end(const std::string& why);
  /// While paused, hands out no work; workers that wait get theirs afterwards.
  void pause(bool on) {
    is_paused_ = on;
    assign_work();
  }

 private:
  struct ReceivedPush {
    Assignment assignment;
    double computing_seconds = 0;
  };
  struct Released {
    int worker = 0;
    bool had_item = false;
  };
  /// A message and its sender.
  struct Received {
    PeerId peer = 0;
    const std::string& name;
    const Json& json;
    const std::string& data;
  };

  void on_message(PeerId peer, const std::string& name, const PeerMessage& message);
  template <typename Message>
  void handle(const Received& received);
  void on(const Received& received, const JoinQuery& query);
  void on(const Received& received, const JoinReady& ready);
  void on(const Received& received, const Hello& hello);
  void on(const Received& received, const WorkRequest& request);
  void on(const Received& received, const WorkDone& done);
  void on(const Received& received, const WorkerFailure& failure);
  void on(const Received& received, const LeaveRequest& request);
  void on_reconnect(PeerId peer, const std::string& name);
  void on_disconnect(const PeerEvent& event);

  void assign_work();
  void send_work(PeerId peer, const Ticket& item);
  void apply(ReceivedPush push);
  void add_to_step(const ReceivedPush& push);
  void add_to_round(ReceivedPush push);
  void finish_round_if_due();
  bool has_pending_push(int worker) const;
  bool others_pending() const;
  bool others_may_connect() const;

  std::optional<Released> release(PeerId peer);
  void release_if_finished(PeerId peer);
  void lose(PeerId peer, const std::string& why);
  void report_lost(const Released& lost, const std::string& why);
  std::string num_workers_text() const;

  AsyncTraining& training_;
  AsyncMode& mode_;
  ModelServerOptions options_;
  MessageServer server_;
  struct Slot {
    WorkerSlot memory;
    bool is_used = false;  // The worker could map it too.
  };
  std::map<PeerId, int> workers_;  // Connected workers.
  std::map<PeerId, Slot> slots_;
  std::map<PeerId, Assignment> assigned_;    // Outstanding work.
  std::vector<PeerId> idle_;                 // In the order in which they asked for work.
  std::vector<ReceivedPush> pending_;        // With stale:0, pushes of the unfinished step; with a quorum, those of the next exchange.
  std::set<int> ever_connected_;             // Workers.
  std::set<int> lost_;                       // Workers that were lost or have left.
  std::set<PeerId> leaving_;                 // Workers that leave once they have no outstanding work.
  std::map<std::string, int> reconnecting_;  // By name, workers whose new connection has not sent Hello yet.
  std::map<PeerId, int> joining_;            // Numbers of joining workers, by the connection over which they were given.
  int num_worker_numbers_;                   // Numbers given out.
  QuorumGate gate_;
  bool is_paused_ = false;
};

}  // namespace cohort
