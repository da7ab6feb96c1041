#pragma once
// Messages between processes of one job (message_listener.h, message_server.h, message_client.h), and the frames that carry them.
// Torch-free.
//
// A message is cut into pieces, so that no queue holds more than a few pieces of a large one; each piece says the length of its message and
// its own offset. A receiver checks both before it allocates memory.
//
// A frame is one ZeroMQ message part, little-endian: 'C' 'H' 'M', version, kind, three bytes of 0, then text bytes, data bytes and offset
// in 8 bytes each, then the payload. docs/formats/messages.md.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cohort {

struct PeerMessage {
  std::string text;  ///< Usually JSON.
  std::string data;  ///< Usually numbers.
  size_t num_bytes() const { return text.size() + data.size(); }
};

/// Each end of a connection enforces its own limits.
struct MessageLimits {
  size_t max_message_bytes = size_t{64} << 20;   ///< Text and data; a larger one is rejected before memory is allocated.
  size_t max_waiting_bytes = size_t{256} << 20;  ///< Messages queued for one slow peer.
  size_t max_peers = 4096;
  size_t max_unauthenticated = 128;  ///< Connections still in the handshake; further ones wait in the kernel.
  double handshake_seconds = 10;     ///< Time limit of the handshake.
  double silence_seconds = 60;       ///< A peer is lost if its host has not answered for so long.
  double heartbeat_seconds = 0;      ///< Above 0: a peer is also lost if its process misses three heartbeats, as a suspended one does.
  bool encrypts = true;              ///< False only to measure the cost of encryption: no authentication. On this host only.
};

enum class MessageFrameKind : uint8_t {
  kHello = 1,    ///< Client, first on each connection: its name.
  kWelcome = 2,  ///< Server: the client is accepted.
  kGoAway = 3,   ///< Server: ends the connection, with the reason.
  kPiece = 4,    ///< A piece of a message, from either side.
};

inline constexpr size_t kFrameHeaderBytes = 32;
inline constexpr size_t kPieceBytes = size_t{256} << 10;
inline constexpr size_t kMaxNoteBytes = 512;  ///< Maximum payload of other kinds.

struct MessageFrame {
  MessageFrameKind kind = MessageFrameKind::kPiece;
  uint64_t text_bytes = 0, data_bytes = 0;  ///< Of the whole message.
  uint64_t offset = 0;                      ///< Of the payload in the concatenated text and data.
  std::string_view payload;
};

/// The returned frame is consistent and points into `bytes`. Error(kEnvironment) with the reason for an invalid frame.
MessageFrame parse_frame(std::string_view bytes);
std::array<char, kFrameHeaderBytes> frame_header(const MessageFrame& frame);
/// A frame of any kind but a piece; a text that is too long is truncated.
std::string note_frame(MessageFrameKind kind, std::string_view text);

/// Size of the piece at `offset`; a piece of 0 bytes is a complete empty message.
size_t piece_bytes(const PeerMessage& message, uint64_t offset);
/// Writes header and payload of that piece: kFrameHeaderBytes + piece_bytes() bytes.
void write_piece(const PeerMessage& message, uint64_t offset, char* to);

/// Reassembles the messages of one peer.
class MessageAssembly {
 public:
  explicit MessageAssembly(size_t max_message_bytes) : max_bytes_(max_message_bytes) {}
  /// The message that this piece completes, if any. Error(kEnvironment) if the message is too long or the piece is not the expected one.
  std::optional<PeerMessage> take(const MessageFrame& piece);

 private:
  size_t max_bytes_;
  bool has_begun_ = false;
  uint64_t text_bytes_ = 0, data_bytes_ = 0, received_ = 0;
  PeerMessage message_;
};

}  // namespace cohort
