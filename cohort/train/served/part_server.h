#pragma once
// One of several servers of a model (sync=async:servers=S): it has some of the tensors, and does to them what rank 0 does to its own.

#include <atomic>
#include <exception>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cohort/base/text/json_fwd.h"
#include "cohort/train/async/gradient_server.h"
#include "cohort/train/served/served_words.h"
#include "cohort/train/served/worker_slot.h"
#include "cohort/world/messages/message_client.h"
#include "cohort/world/messages/message_server.h"

namespace cohort {

struct PartServerOptions {
  int server = 1;
  bool gives_slots = true;    ///< To workers of this host.
  bool keeps_pushes = false;  ///< stale:0: a push may come before the worker's one before was applied.
  MessageLimits limits;
  double timeout_seconds = 60;
};

/// A thread, from when it is made until rank 0 says that it is over, or this object goes.
class PartServer {
 public:
  /// `model`, its part of the model, must outlive it; `to_first` connects to rank 0.
  PartServer(GradientServer& model, MessageListener listener, MessageClient to_first, const PartServerOptions& options);
  ~PartServer();
  /// Until it is over. What went wrong, where something did; null for nothing.
  std::exception_ptr join();

 private:
  struct Served {
    PeerId peer = 0;
    WorkerSlot slot;
    bool is_used = false;  // The worker found it too.
  };
  struct InHand {
    Work work;
    bool has_come = false;  // What came of it.
  };
  void serve();
  void hear(const PeerEvent& event);
  void take_over(PeerId peer, const Json& state, const std::string& data, const std::string& where);
  void obey(const PartOrder& order);
  void hand_out(const PartOrder& order);
  void apply(const PartOrder& order);
  void show(int64_t number);
  void welcome(PeerId peer, const Json& said, const std::string& where);
  void take_push(int worker, const PartOfPush& part, const std::string& data, const std::string& where);

  GradientServer& model_;
  std::optional<MessageListener> listener_;
  MessageClient to_first_;
  PartServerOptions options_;
  std::optional<MessageServer> server_;
  std::optional<PeerId> first_;    // Rank 0's connection, over which its orders come.
  std::map<int, Served> workers_;  // By their number: the newest connection of each.
  std::map<PeerId, int> worker_of_;
  std::map<int64_t, InHand> in_hand_;  // By order.
  bool is_over_ = false;
  std::atomic<bool> wants_end_ = false;
  std::exception_ptr failure_;
  std::thread thread_;  // Last: it uses the others.
};

/// What one server hands to another that takes its part over: weights, then what is saved beside them.
std::vector<at::Tensor> tensors_of(const std::vector<at::Tensor>& weights, const std::vector<FlatPiece>& pieces);

}  // namespace cohort
