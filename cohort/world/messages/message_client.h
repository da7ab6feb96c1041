#pragma once
// The client of a MessageServer: a rank of a study, or a worker of a parameter server.

#include <memory>
#include <optional>
#include <string>

#include "cohort/base/export.h"
#include "cohort/world/messages/message.h"

namespace cohort {

/// One thread at a time. connect() starts two threads of libzmq, so the process must not fork from then on.
class COHORT_PROGRAM_API MessageClient {
 public:
  struct Options {
    std::string name;                    ///< Name of this client at the server: "rank 3".
    std::string server_name = "rank 0";  ///< Name of the server in error messages.
    MessageLimits limits = {};
  };
  MessageClient() = default;
  /// `endpoint` and `secret` of the server's listener; connect() comes later. Error(kBadInput) for an invalid endpoint; errors of
  /// message_keys().
  MessageClient(const std::string& endpoint, const std::string& secret, Options options);
  /// Gives sent messages a few seconds to go out.
  ~MessageClient();
  MessageClient(MessageClient&&) noexcept;
  MessageClient& operator=(MessageClient&&) noexcept;

  /// Retries until the server accepts this client; also to reconnect, when earlier messages may or may not have arrived.
  /// Error(kEnvironment) if nobody answers in time, or the server rejects this client.
  void connect(double timeout_seconds);
  /// Waits for at most `timeout_seconds` while the server is busy. Error(kEnvironment) if the server is gone or remains busy,
  /// Error(kFailed) for a message that is too long.
  void send(const PeerMessage& message, double timeout_seconds = 60);
  /// The next message, waiting for at most `timeout_seconds` (0: not at all). Error(kEnvironment) if the server is gone and all that it
  /// sent has been received.
  std::optional<PeerMessage> receive(double timeout_seconds);

  const std::string& server_name() const;
  /// False once a call noticed that the server is gone, and before connect().
  bool is_connected() const;
  /// The server dismissed this client and would not accept it again.
  bool was_dismissed() const;
  void close();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cohort
