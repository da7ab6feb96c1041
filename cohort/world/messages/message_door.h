#pragma once
// Who comes in to a MessageServer: checks the key of each connection, knows which are open, and keeps the door shut while too many are
// there that have not shown it.

#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "cohort/world/messages/message_listener.h"
#include "cohort/world/messages/zmq_socket.h"

namespace cohort {

/// One thread, the server's.
class MessageDoor {
 public:
  /// Before `router` is bound: libzmq asks it, through a socket of its own (ZAP, RFC 27 of ZeroMQ), who may come in.
  MessageDoor(const ZmqContext& context, const ZmqSocket& router, const std::string& client_public_key, size_t max_strangers);
  void bind(ZmqSocket& router, MessageListener listener);

  /// Answers who asked to come in, and calls `on_gone` with the descriptor of each connection that closed since the last call.
  void attend(const std::function<void(int)>& on_gone);
  bool is_open(int descriptor) const { return open_.contains(descriptor); }
  /// Of the connections that are open so many are peers'.
  void bound_strangers(size_t num_peers);
  bool is_shut() const { return is_shut_; }
  /// Connections that ended before they had shown the key.
  int64_t num_refused() const { return num_refused_; }
  const ZmqSocket& questions() const { return questions_; }
  const ZmqSocket& events() const { return monitor_.socket(); }

 private:
  void answer_questions();

  ZmqSocket questions_;
  ZmqMonitor monitor_;
  std::string key_;
  size_t max_strangers_;
  UniqueDescriptor listening_;
  std::set<int> open_;
  int64_t num_refused_ = 0;
  bool is_shut_ = false, is_local_ = false;
};

}  // namespace cohort
