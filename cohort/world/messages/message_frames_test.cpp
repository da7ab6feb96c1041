#include "cohort/world/messages/message.h"

#include <doctest/doctest.h>

#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "tests/support/mutation.h"

using namespace cohort;

namespace {

std::vector<std::string> pieces_of(const PeerMessage& message) {
  std::vector<std::string> pieces;
  uint64_t offset = 0;
  do {
    pieces.emplace_back(kFrameHeaderBytes + piece_bytes(message, offset), '\0');
    write_piece(message, offset, pieces.back().data());
    offset += piece_bytes(message, offset);
  } while (offset < message.num_bytes());
  return pieces;
}

std::string counted(size_t count, char first) {
  std::string bytes(count, '\0');
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(first + i % 251);
  return bytes;
}

std::string refusal_of(const std::string& bytes) {
  try {
    parse_frame(bytes);
    return "";
  } catch (const Error& error) {
    REQUIRE(error.code() == ErrorCode::kEnvironment);
    return error.what();
  }
}

}  // namespace

TEST_CASE("messages of any length survive their pieces") {
  MessageAssembly assembly(16 << 20);
  for (const size_t text : {size_t{0}, size_t{1}, kPieceBytes - 1, kPieceBytes, kPieceBytes + 1, 3 * kPieceBytes + 7})
    for (const size_t data : {size_t{0}, size_t{1}, kPieceBytes - 1, kPieceBytes, 2 * kPieceBytes + 5}) {
      const PeerMessage message{counted(text, 'a'), counted(data, 'A')};
      const std::vector<std::string> pieces = pieces_of(message);
      CHECK(pieces.size() == std::max<size_t>(1, (text + data + kPieceBytes - 1) / kPieceBytes));
      std::optional<PeerMessage> whole;
      for (const std::string& piece : pieces) {
        REQUIRE_FALSE(whole);
        whole = assembly.take(parse_frame(piece));
      }
      REQUIRE(whole);
      CHECK((whole->text == message.text && whole->data == message.data));
    }
}

TEST_CASE("notes carry a text, cut where it is too long") {
  const std::string hello = note_frame(MessageFrameKind::kHello, "rank 3");
  CHECK(parse_frame(hello).kind == MessageFrameKind::kHello);
  CHECK(parse_frame(hello).payload == "rank 3");
  CHECK(parse_frame(note_frame(MessageFrameKind::kGoAway, std::string(10'000, 'x'))).payload.size() == kMaxNoteBytes);
}

TEST_CASE("a frame that does not hold together is refused with what is wrong") {
  const std::string good = pieces_of({"text", "data"}).front();
  CHECK(refusal_of(good) == "");
  CHECK(refusal_of("").find("shorter than its header") != std::string::npos);
  for (size_t length = 0; length < good.size(); ++length) CHECK(refusal_of(good.substr(0, length)) != "");
  CHECK(refusal_of(good + "x").find("another length") != std::string::npos);
  const auto with = [&](size_t at, char value) {
    std::string bytes = good;
    bytes[at] = value;
    return refusal_of(bytes);
  };
  CHECK(with(0, 'X').find("not Cohort's") != std::string::npos);
  CHECK(with(3, 2).find("version 2 and not 1") != std::string::npos);
  CHECK(with(4, 0).find("no known kind") != std::string::npos);
  CHECK(with(4, 9).find("no known kind") != std::string::npos);
  CHECK(with(5, 1).find("not 0") != std::string::npos);
  CHECK(with(15, 1).find("invalid length") != std::string::npos);  // 2^56 bytes of text.
  CHECK(with(23, 1).find("invalid length") != std::string::npos);
  CHECK(with(24, 1).find("invalid offset") != std::string::npos);
  CHECK(with(31, 1).find("after the end") != std::string::npos);
  CHECK(with(4, 1).find("too long for its kind") != std::string::npos);  // A hello has no data.
}

TEST_CASE("a length is checked before memory is taken, and pieces come in their order") {
  const auto piece = [](uint64_t text_bytes, uint64_t offset, const std::string& payload) {
    return MessageFrame{MessageFrameKind::kPiece, text_bytes, 0, offset, payload};
  };
  const std::string full(kPieceBytes, 'x');
  MessageAssembly small(1000), assembly(10 * kPieceBytes);
  CHECK_THROWS_WITH_AS(small.take(piece(1001, 0, std::string(1001, 'x'))), "a message of 1001 bytes, over the limit of 1000", Error);
  CHECK_THROWS_AS(small.take(piece(uint64_t{1} << 47, 0, full)), Error);
  CHECK(small.take(piece(3, 0, "abc"))->text == "abc");  // And goes on.
  CHECK_THROWS_AS(assembly.take(piece(2 * kPieceBytes, kPieceBytes, full)), Error);
  CHECK_FALSE(assembly.take(piece(3 * kPieceBytes, 0, full)));
  CHECK_THROWS_AS(assembly.take(piece(3 * kPieceBytes, 0, full)), Error);                // Twice.
  CHECK_THROWS_AS(assembly.take(piece(3 * kPieceBytes, 2 * kPieceBytes, full)), Error);  // One is left out.
  CHECK_THROWS_AS(assembly.take(piece(4 * kPieceBytes, kPieceBytes, full)), Error);      // Of another message.
  CHECK_FALSE(assembly.take(piece(3 * kPieceBytes, kPieceBytes, full)));
  CHECK(assembly.take(piece(3 * kPieceBytes, 2 * kPieceBytes, full))->text.size() == 3 * kPieceBytes);
}

TEST_CASE("mutation: frames, one after the other to one assembly") {
  const uint64_t times = mutation_count(10'000);  // 1,000,000 takes half a minute.
  const std::vector<std::string> wholes = {pieces_of({"some text", "data"}).front(), pieces_of({"", ""}).front(),
                                           note_frame(MessageFrameKind::kHello, "rank 1")};
  MessageAssembly assembly(1000);
  uint64_t accepted = 0, refused = 0;
  for (uint64_t seed = 1; seed <= times; ++seed) {
    try {
      const std::string bytes = mutated(wholes[seed % wholes.size()], seed);
      const MessageFrame frame = parse_frame(bytes);
      REQUIRE(frame.payload.size() == bytes.size() - kFrameHeaderBytes);
      if (frame.kind != MessageFrameKind::kPiece) {
        REQUIRE(frame.payload.size() <= kMaxNoteBytes);
      } else if (const auto message = assembly.take(frame)) {
        REQUIRE(message->num_bytes() <= 1000);
      }
      ++accepted;
    } catch (const Error&) {
      ++refused;
    }
  }
  CHECK(accepted > times / 50);
  CHECK(refused > times / 4);
}
