#pragma once
// One process that many talk to: rank 0 of a study, a parameter server. Rides on ZeroMQ: connections are encrypted, and only who has the
// secret comes in. How, and what a stranger can do: docs/adr/0028-messages-over-zeromq.md.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "cohort/base/export.h"
#include "cohort/world/messages/message.h"
#include "cohort/world/messages/message_listener.h"

namespace cohort {

/// One connection of a client. A client that comes again is another peer, of the same name.
using PeerId = uint64_t;

struct PeerEvent {
  enum class Kind { kJoined, kMessage, kLost };
  Kind kind = Kind::kMessage;
  PeerId peer = 0;
  std::string name;         ///< What the client calls itself: "rank 3".
  PeerMessage message;      ///< Of kMessage.
  std::string why;          ///< Of kLost: "rank 3 is gone".
  bool came_again = false;  ///< Of kLost: for one of the same name has come by another connection.
};

/// One thread at a time, which has to come back to poll(): nobody comes in, and nothing goes out, at other times. Starts two threads of
/// libzmq's own, so the process must not fork afterwards.
class COHORT_PROGRAM_API MessageServer {
 public:
  /// Error(kEnvironment) where the system does not let it listen; Error(kBadInput) for limits that do not go together.
  explicit MessageServer(MessageListener listener, MessageLimits limits = {});
  /// Gives what was sent a second to go out; peers then see that it is gone.
  ~MessageServer();
  MessageServer(MessageServer&&) noexcept;
  MessageServer& operator=(MessageServer&&) noexcept;

  const std::string& endpoint() const;
  /// What happened next, waiting for at most `timeout_seconds` (0: not at all); none where nothing did. Each peer joins first, its messages
  /// come whole and in order, and last that it is lost: after all that it had sent.
  std::optional<PeerEvent> poll(double timeout_seconds);
  /// Never waits: what the peer does not take now goes out in later calls of poll(). False where the peer is lost. Error(kEnvironment)
  /// where more than max_waiting_bytes would wait for it, Error(kFailed) for a message that is too long.
  bool send(PeerId peer, PeerMessage message);
  bool send(PeerId peer, std::shared_ptr<const PeerMessage> message);
  /// Tells the peer to go, and why. Nothing more comes from it, not that it is lost either.
  void dismiss(PeerId peer, const std::string& why);

  size_t num_peers() const;
  /// How much of what was sent to the peer has not gone out; 0 where it is lost.
  size_t waiting_bytes(PeerId peer) const;
  /// Connections that ended before they had shown the secret.
  int64_t num_refused() const;

 private:
  struct Inside;
  std::unique_ptr<Inside> inside_;
};

}  // namespace cohort
