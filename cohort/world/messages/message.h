#pragma once
// What processes of one job say to each other (message_listener.h, message_server.h, message_client.h), and the frames that it travels in.
// Torch-free.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cohort {

struct PeerMessage {
  std::string text;  ///< JSON, say.
  std::string data;  ///< Numbers, say.
  size_t num_bytes() const { return text.size() + data.size(); }
};

/// Both ends of a connection keep to their own.
struct MessageLimits {
  size_t max_message_bytes = size_t{64} << 20;   ///< Of text and data together; more is refused before memory is taken for it.
  size_t max_waiting_bytes = size_t{256} << 20;  ///< Of messages to one peer that does not take them.
  size_t max_peers = 4096;
  size_t max_strangers = 128;     ///< Connections at a time that have not shown the secret; further ones wait in the kernel.
  double handshake_seconds = 10;  ///< For showing it.
  double silence_seconds = 60;    ///< A peer is lost whose host has answered nothing for so long.
  double heartbeat_seconds = 0;   ///< Above 0: a peer is lost, too, whose process answers nothing for three of them, as a stopped one.
  bool encrypts = true;           ///< False measures what encryption costs: nobody has to show the secret. On this host alone.
};

// The frames that messages travel in. A message is cut into pieces, so that no queue holds more than some pieces of a large one; each says
// which message it is of, how long that is and where the piece lies in it. A receiver checks all of that before it takes memory.
//
// A frame is one part of ZeroMQ's, little-endian: 'C' 'H' 'M', version, kind, three bytes of 0, then text bytes, data bytes and offset in
// 8 bytes each, then the payload. docs/formats/messages.md.

enum class MessageFrameKind : uint8_t {
  kHello = 1,    ///< Client, first on each connection: its name.
  kWelcome = 2,  ///< Server: messages may follow.
  kGoAway = 3,   ///< Server: this connection is done with, and why.
  kPiece = 4,    ///< Of a message, from either.
};

inline constexpr size_t kFrameHeaderBytes = 32;
inline constexpr size_t kPieceBytes = size_t{256} << 10;
inline constexpr size_t kMaxNoteBytes = 512;  ///< Payload of all kinds but pieces.

struct MessageFrame {
  MessageFrameKind kind = MessageFrameKind::kPiece;
  uint64_t text_bytes = 0, data_bytes = 0;  ///< Of the whole message.
  uint64_t offset = 0;                      ///< Of the payload in text and data, one after the other.
  std::string_view payload;
};

/// Error(kEnvironment) that says what is wrong where `bytes` are no frame; what it returns holds together, and points into `bytes`.
MessageFrame parse_frame(std::string_view bytes);
std::array<char, kFrameHeaderBytes> frame_header(const MessageFrame& frame);
/// A frame of any kind but a piece; a text that is too long is cut.
std::string note_frame(MessageFrameKind kind, std::string_view text);

/// How many bytes the piece at `offset` has; one of no bytes is a whole empty message.
size_t piece_bytes(const PeerMessage& message, uint64_t offset);
/// Header and payload of that piece to `to`, which has room for kFrameHeaderBytes + piece_bytes().
void write_piece(const PeerMessage& message, uint64_t offset, char* to);

/// Puts pieces together. One for each peer.
class MessageAssembly {
 public:
  explicit MessageAssembly(size_t max_message_bytes) : max_bytes_(max_message_bytes) {}
  /// The message that this piece completes. Error(kEnvironment) where it is too long, or the piece is not the next one of what has begun.
  std::optional<PeerMessage> take(const MessageFrame& piece);

 private:
  size_t max_bytes_;
  bool has_begun_ = false;
  uint64_t text_bytes_ = 0, data_bytes_ = 0, received_ = 0;
  PeerMessage message_;
};

}  // namespace cohort
