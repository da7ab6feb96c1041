#pragma once
// The server of many clients: rank 0 of a study, or a parameter server. Uses ZeroMQ with encrypted connections; clients authenticate by a
// shared secret. Design, and what an unauthenticated process can do: docs/adr/0028-messages-over-zeromq.md.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "cohort/base/export.h"
#include "cohort/world/messages/message.h"
#include "cohort/world/messages/message_listener.h"

namespace cohort {

/// One connection of a client. A client that reconnects is another peer with the same name.
using PeerId = uint64_t;

struct PeerEvent {
  enum class Kind { kJoined, kMessage, kLost };
  Kind kind = Kind::kMessage;
  PeerId peer = 0;
  std::string name;         ///< The client's own name: "rank 3".
  PeerMessage message;      ///< With kMessage.
  std::string why;          ///< With kLost: "rank 3 is gone".
  bool came_again = false;  ///< With kLost: a client of the same name has connected.
};

/// One thread at a time, which must call poll() regularly: connections are accepted and queued messages sent only there. Starts two threads
/// of libzmq, so the process must not fork afterwards.
class COHORT_PROGRAM_API MessageServer {
 public:
  /// Error(kEnvironment) if the system does not let it listen; Error(kBadInput) for unencrypted messages beyond this host.
  explicit MessageServer(MessageListener listener, MessageLimits limits = {});
  /// Gives sent messages a second to go out; peers then notice that it is gone.
  ~MessageServer();
  MessageServer(MessageServer&&) noexcept;
  MessageServer& operator=(MessageServer&&) noexcept;

  const std::string& endpoint() const;
  /// The next event, waiting for at most `timeout_seconds` (0: not at all). Each peer first joins; its messages arrive whole and in order;
  /// its loss is reported last.
  std::optional<PeerEvent> poll(double timeout_seconds);
  /// Never waits: later calls of poll() send what the peer does not take now. False if the peer is lost. Error(kEnvironment) if more than
  /// max_waiting_bytes would be queued for it, Error(kFailed) for a message that is too long.
  bool send(PeerId peer, PeerMessage message);
  bool send(PeerId peer, std::shared_ptr<const PeerMessage> message);
  /// Ends the connection, with the reason. No more events of the peer follow, not even its loss.
  void dismiss(PeerId peer, const std::string& why);

  size_t num_peers() const;
  /// Bytes queued for the peer; 0 if it is lost.
  size_t waiting_bytes(PeerId peer) const;
  /// Connections that failed authentication.
  int64_t num_refused() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cohort
