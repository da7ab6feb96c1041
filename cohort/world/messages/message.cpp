#include "cohort/world/messages/message.h"

#include <algorithm>
#include <cstring>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

constexpr char kVersion = 1;
constexpr uint64_t kMaxBytes = uint64_t{1} << 48;  // Sums of lengths below this do not overflow.

void write_number(char* to, uint64_t value) {
  for (int byte = 0; byte < 8; ++byte) to[byte] = static_cast<char>(value >> (8 * byte));
}
uint64_t read_number(const char* from) {
  uint64_t value = 0;
  for (int byte = 0; byte < 8; ++byte) value |= static_cast<uint64_t>(static_cast<uint8_t>(from[byte])) << (8 * byte);
  return value;
}

}  // namespace

MessageFrame parse_frame(std::string_view bytes) {
  const auto refuse = [&](const auto&... why) { fail(ErrorCode::kEnvironment, "a frame of ", bytes.size(), " bytes that ", why...); };
  if (bytes.size() < kFrameHeaderBytes) refuse("is shorter than its header");
  if (bytes.substr(0, 3) != "CHM") refuse("is not Cohort's");
  if (bytes[3] != kVersion) refuse("is of version ", static_cast<int>(bytes[3]), " and not ", static_cast<int>(kVersion));
  const int kind = bytes[4];
  if (kind < static_cast<int>(MessageFrameKind::kHello) || kind > static_cast<int>(MessageFrameKind::kPiece)) refuse("is of no known kind");
  if (bytes[5] != 0 || bytes[6] != 0 || bytes[7] != 0) refuse("has bytes in its header that are not 0");
  const MessageFrame frame{static_cast<MessageFrameKind>(kind), read_number(bytes.data() + 8), read_number(bytes.data() + 16),
                           read_number(bytes.data() + 24), bytes.substr(kFrameHeaderBytes)};
  if (frame.text_bytes >= kMaxBytes || frame.data_bytes >= kMaxBytes) refuse("has an invalid length");
  const uint64_t whole = frame.text_bytes + frame.data_bytes;
  if (frame.offset > whole) refuse("begins after the end of its message");
  const bool is_piece = frame.kind == MessageFrameKind::kPiece;
  if (is_piece && (frame.offset % kPieceBytes != 0 || (frame.offset == whole && whole > 0))) refuse("has an invalid offset");
  if (!is_piece && (frame.data_bytes != 0 || frame.offset != 0 || whole > kMaxNoteBytes)) refuse("is too long for its kind");
  if (frame.payload.size() != (is_piece ? std::min<uint64_t>(whole - frame.offset, kPieceBytes) : whole))
    refuse("has another length than its header says");
  return frame;
}

std::array<char, kFrameHeaderBytes> frame_header(const MessageFrame& frame) {
  std::array<char, kFrameHeaderBytes> header{'C', 'H', 'M', kVersion, static_cast<char>(frame.kind)};
  write_number(header.data() + 8, frame.text_bytes);
  write_number(header.data() + 16, frame.data_bytes);
  write_number(header.data() + 24, frame.offset);
  return header;
}

std::string note_frame(MessageFrameKind kind, std::string_view text) {
  text = text.substr(0, kMaxNoteBytes);
  const auto header = frame_header({.kind = kind, .text_bytes = text.size()});
  return std::string(header.data(), header.size()).append(text);
}

size_t piece_bytes(const PeerMessage& message, uint64_t offset) {
  return static_cast<size_t>(std::min<uint64_t>(message.num_bytes() - offset, kPieceBytes));
}

void write_piece(const PeerMessage& message, uint64_t offset, char* to) {
  const auto header = frame_header(
      {.kind = MessageFrameKind::kPiece, .text_bytes = message.text.size(), .data_bytes = message.data.size(), .offset = offset});
  std::memcpy(to, header.data(), header.size());
  to += header.size();
  const size_t count = piece_bytes(message, offset);
  const size_t text_count = offset < message.text.size() ? std::min<size_t>(count, message.text.size() - offset) : 0;
  if (text_count > 0) std::memcpy(to, message.text.data() + offset, text_count);
  if (count > text_count)
    std::memcpy(to + text_count, message.data.data() + (offset + text_count - message.text.size()), count - text_count);
}

std::optional<PeerMessage> MessageAssembly::take(const MessageFrame& piece) {
  if (!has_begun_) {
    if (piece.offset != 0) fail(ErrorCode::kEnvironment, "a piece from the middle of a message that has not begun");
    if (piece.text_bytes + piece.data_bytes > max_bytes_)
      fail(ErrorCode::kEnvironment, "a message of ", piece.text_bytes + piece.data_bytes, " bytes, over the limit of ", max_bytes_);
    has_begun_ = true;
    received_ = 0;
    text_bytes_ = piece.text_bytes;
    data_bytes_ = piece.data_bytes;
    message_ = {};
    message_.text.reserve(text_bytes_);
    message_.data.reserve(data_bytes_);
  }
  if (piece.offset != received_ || piece.text_bytes != text_bytes_ || piece.data_bytes != data_bytes_)
    fail(ErrorCode::kEnvironment, "a piece that is not the next one of its message");
  const size_t text_count = static_cast<size_t>(std::min<uint64_t>(piece.payload.size(), text_bytes_ - message_.text.size()));
  message_.text.append(piece.payload.substr(0, text_count));
  message_.data.append(piece.payload.substr(text_count));
  received_ += piece.payload.size();
  if (received_ < text_bytes_ + data_bytes_) return std::nullopt;
  has_begun_ = false;
  return std::move(message_);
}

}  // namespace cohort
