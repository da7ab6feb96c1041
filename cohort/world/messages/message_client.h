#pragma once
// One that talks to a MessageServer: a rank of a study, a worker of a parameter server.

#include <memory>
#include <optional>
#include <string>

#include "cohort/base/export.h"
#include "cohort/world/messages/message.h"

namespace cohort {

/// One thread at a time. Once it has connected two threads of libzmq's run, so the process must not fork from then on.
class COHORT_PROGRAM_API MessageClient {
 public:
  struct Options {
    std::string name;                    ///< What the server calls this client: "rank 3".
    std::string server_name = "rank 0";  ///< What messages call the server.
    MessageLimits limits = {};
  };
  MessageClient() = default;
  /// Of a server's listener. Connects later. Errors as message_keys'; Error(kBadInput) for what is no endpoint.
  MessageClient(const std::string& endpoint, const std::string& secret, Options options);
  /// What was sent has some seconds to go out.
  ~MessageClient();
  MessageClient(MessageClient&&) noexcept;
  MessageClient& operator=(MessageClient&&) noexcept;

  /// Tries until the server lets it in; also again, after the connection was lost. What had been sent before may have arrived or not.
  /// Error(kEnvironment) where nobody answers in time, or the server lets it not in.
  void connect(double timeout_seconds);
  /// Waits while the server does not take it, for at most `timeout_seconds`. Error(kEnvironment) where the server is gone or takes nothing,
  /// Error(kFailed) for a message that is too long.
  void send(const PeerMessage& message, double timeout_seconds = 60);
  /// The next message, waiting for at most `timeout_seconds` (0: not at all); none where there was none in time. Error(kEnvironment) where
  /// the server is gone: what it sent before comes out first.
  std::optional<PeerMessage> receive(double timeout_seconds);

  const std::string& server_name() const;
  /// False from when a call noticed that the server is gone; also of a client without a server.
  bool is_connected() const;
  /// The server told this client to go: it would not let it in again.
  bool was_dismissed() const;
  void close();

 private:
  struct Inside;
  std::unique_ptr<Inside> inside_;
};

}  // namespace cohort
