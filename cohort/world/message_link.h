#pragma once
// Lines of text between two processes over a stream socket: a socket pair made before a fork, or TCP with a token. Torch-free.

#include <optional>
#include <string>
#include <vector>

#include "cohort/base/files/file.h"

namespace cohort {

/// One end. A message is one line without a newline in it, of at most kMaxMessageBytes. One thread at a time.
class MessageLink {
 public:
  static constexpr size_t kMaxMessageBytes = size_t{64} << 20;
  MessageLink() = default;
  /// `peer` names the other end in messages. Takes over the descriptor and makes it non-blocking.
  MessageLink(UniqueDescriptor socket, std::string peer);

  /// Waits while the peer does not read, for at most `timeout_seconds`. Error(kEnvironment) where the peer is gone or does not read.
  void send(const std::string& message, double timeout_seconds = 60);
  /// The next message, waiting for at most `timeout_seconds` (0: not at all); none where there was none in time. Error(kEnvironment) where
  /// the peer is gone (what it sent before is given out first), or sends a line that is too long.
  std::optional<std::string> receive(double timeout_seconds);
  /// To poll(2) for POLLIN; a message may also have been read already, so receive(0) until there is none first.
  int descriptor() const { return socket_.get(); }
  const std::string& peer() const { return peer_; }
  explicit operator bool() const { return static_cast<bool>(socket_); }
  void close() { socket_.reset(); }
  /// Bounds what a peer that is not yet trusted may send, until it is known by name.
  void limit_message_bytes(size_t bytes) { max_bytes_ = bytes; }
  void trust_as(std::string peer) { peer_ = std::move(peer), max_bytes_ = kMaxMessageBytes; }

 private:
  std::optional<std::string> take_line();
  bool read_some();

  UniqueDescriptor socket_;
  std::string peer_;
  std::string received_;
  size_t searched_ = 0;  ///< No newline in received_ before this.
  size_t max_bytes_ = kMaxMessageBytes;
};

/// Socket pairs between rank 0 and every rank (itself too) of a job that is to be forked. Each rank takes its ends once; all others are
/// closed in it, so that an end that closes is noticed.
class LinkPairs {
 public:
  explicit LinkPairs(int num_ranks);
  struct Ends {
    std::vector<MessageLink> to_workers;  ///< Rank 0 alone: one a rank.
    MessageLink to_coordinator;
  };
  Ends take(int rank);

 private:
  std::vector<UniqueDescriptor> coordinator_, worker_;
};

/// The coordinator's side of a job that something else started. Listens on one address only; a peer that does not send the token first is
/// dropped.
class LinkListener {
 public:
  /// A free port of `address` (a name or a number of this host). Error(kEnvironment).
  explicit LinkListener(const std::string& address);
  /// "ADDRESS PORT TOKEN" for connect_link; 128 random bits of token. To be published to the job alone.
  std::string ticket() const;
  /// The links of ranks 1 to num_ranks - 1, in their order; the listener is closed then. Error(kEnvironment) naming the ranks that did not
  /// come in time. A rank whose host can not be reached for so long later is gone, too.
  std::vector<MessageLink> accept_ranks(int num_ranks, double timeout_seconds);

 private:
  UniqueDescriptor socket_;
  std::string address_, token_;
  int port_ = 0;
};
/// Error(kEnvironment) with the address. Rank 0 is gone when its host can not be reached for so long.
MessageLink connect_link(const std::string& ticket, int rank, double timeout_seconds);

}  // namespace cohort
