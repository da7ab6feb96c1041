#pragma once
// Admission of connections to a MessageServer: authenticates each by its key, tracks which are open, and limits unauthenticated ones.

#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "cohort/world/messages/message_listener.h"
#include "cohort/world/messages/zmq_socket.h"

namespace cohort {

/// One thread, the server's.
class ConnectionAdmission {
 public:
  /// Construct before `router` is bound: libzmq asks it over a socket of its own (ZAP, ZeroMQ RFC 27) which clients to accept.
  ConnectionAdmission(const ZmqContext& context, const ZmqSocket& router, const std::string& client_public_key, size_t max_unauthenticated);
  void bind(ZmqSocket& router, MessageListener listener);

  /// Answers authentication requests, and calls `on_closed` with the descriptor of each connection closed since the last call.
  void process_events(const std::function<void(int)>& on_closed);
  bool is_open(int descriptor) const { return open_.contains(descriptor); }
  /// Stops or resumes accepting connections, given how many of the open ones are peers'.
  void limit_unauthenticated(size_t num_peers);
  bool is_paused() const { return is_paused_; }
  /// Connections that failed authentication.
  int64_t num_refused() const { return num_refused_; }
  const ZmqSocket& requests() const { return requests_; }
  const ZmqSocket& events() const { return monitor_.socket(); }

 private:
  void answer_requests();

  ZmqSocket requests_;
  ZmqMonitor monitor_;
  std::string key_;
  size_t max_unauthenticated_;
  UniqueDescriptor listening_;
  std::set<int> open_;
  int64_t num_refused_ = 0;
  bool is_paused_ = false, is_local_ = false;
};

}  // namespace cohort
