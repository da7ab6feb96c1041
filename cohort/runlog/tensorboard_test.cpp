#include "cohort/runlog/tensorboard.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <string_view>

namespace cohort {
namespace {

std::string from_hex(const std::string& hex) {
  std::string out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return out;
}

uint64_t little_endian(const std::string& data, size_t at, int num_bytes) {
  uint64_t value = 0;
  for (int i = 0; i < num_bytes; ++i) value |= static_cast<uint64_t>(static_cast<unsigned char>(data.at(at + i))) << (8 * i);
  return value;
}

TEST_CASE("crc32c: the vectors of RFC 3720, appendix B.4, and the check value of the catalogue") {
  CHECK(crc32c("") == 0);
  CHECK(crc32c("123456789") == 0xe3069283);
  CHECK(crc32c(std::string(32, '\0')) == 0x8a9136aa);
  CHECK(crc32c(std::string(32, '\xff')) == 0x62a8ab43);
  std::string rising, falling;
  for (int i = 0; i < 32; ++i) rising += static_cast<char>(i), falling += static_cast<char>(31 - i);
  CHECK(crc32c(rising) == 0x46dd794e);
  CHECK(crc32c(falling) == 0x113fdb5c);
}

TEST_CASE("tensorboard: a known scalar record, byte for byte") {
  // Event{wall_time: 1.5, step: 300, summary{value{tag: "loss", simple_value: 0.25}}}
  const std::string event = tensorboard_scalar_event("loss", 300, 0.25f, 1.5);
  CHECK(event == from_hex("09000000000000f83f"  // field 1, fixed64: 1.5
                          "10ac02"              // field 2, varint: 300
                          "2a0d"                // field 5, 13 bytes
                          "0a0b"                // field 1, 11 bytes
                          "0a046c6f7373"        // field 1: "loss"
                          "150000803e"));       // field 2, fixed32: 0.25
  const std::string record = tfrecord(event);
  CHECK(record == from_hex("1b00000000000000"
                           "1a0d9e13") +
                      event + from_hex("9908deed"));
}

TEST_CASE("tensorboard: step 0 is left out, a negative step has ten varint bytes, values keep NaN and infinity") {
  CHECK(tensorboard_scalar_event("a", 0, 1, 0).size() == 9 + 2 + 2 + 3 + 5);
  CHECK(tensorboard_scalar_event("a", -1, 1, 0).size() == 9 + 11 + 2 + 2 + 3 + 5);
  const std::string infinite = tensorboard_scalar_event("a", 1, std::numeric_limits<float>::infinity(), 0);
  CHECK(infinite.substr(infinite.size() - 4) == from_hex("0000807f"));
}

TEST_CASE("tensorboard: a file is records whose lengths and checksums hold, the version first") {
  TemporaryFolder folder;
  std::string path;
  {
    TensorBoardWriter writer(folder / "events");
    path = writer.path();
    for (int i = 0; i < 2000; ++i) writer.scalar("train/loss", i, 1.0 / (i + 1), 1000.0 + i);
    writer.scalar(std::string(300, 'x'), int64_t{1} << 40, std::nan(""), 0);
  }
  CHECK(path.find(".tfevents.") != std::string::npos);
  const std::string data = read_small_file(path, 1 << 20);
  size_t at = 0, num_records = 0;
  while (at < data.size()) {
    const uint64_t length = little_endian(data, at, 8);
    REQUIRE(length <= data.size() - at - 16);
    const auto masked = [&](size_t from, size_t size) {
      const uint32_t crc = crc32c(std::string_view(data).substr(from, size));
      return (crc >> 15 | crc << 17) + 0xa282ead8u;
    };
    CHECK(little_endian(data, at + 8, 4) == masked(at, 8));
    CHECK(little_endian(data, at + 12 + length, 4) == masked(at + 12, length));
    if (num_records == 0)
      CHECK(data.substr(at + 12 + 9, length - 9) ==
            "\x1a\x0d"
            "brain.Event:2");
    at += 16 + length;
    ++num_records;
  }
  CHECK(num_records == 2003);
}

/// A message of protobuf as its fields: numbers, and the bytes of what has a length. Of a field that comes several times, all.
struct Message {
  std::multimap<int, std::string> bytes;
  std::multimap<int, uint64_t> numbers;

  explicit Message(std::string_view text) {
    size_t at = 0;
    const auto varint = [&] {
      uint64_t value = 0;
      for (int shift = 0;; shift += 7) {
        const auto byte = static_cast<unsigned char>(text[at++]);
        value |= static_cast<uint64_t>(byte & 0x7f) << shift;
        if (byte < 0x80) return value;
      }
    };
    while (at < text.size()) {
      const uint64_t key = varint();
      const int field = static_cast<int>(key >> 3);
      if ((key & 7) == 0) {
        numbers.emplace(field, varint());
      } else if ((key & 7) == 2) {
        const uint64_t size = varint();
        REQUIRE(size <= text.size() - at);
        bytes.emplace(field, text.substr(at, size));
        at += size;
      } else {
        const int size = (key & 7) == 1 ? 8 : 4;
        numbers.emplace(field, little_endian(std::string(text), at, size));
        at += static_cast<size_t>(size);
      }
    }
  }
  Message at(int field) const { return Message(text(field)); }
  std::string text(int field) const {
    REQUIRE(bytes.count(field) == 1);
    return bytes.find(field)->second;
  }
  uint64_t number(int field) const {
    REQUIRE(numbers.count(field) == 1);
    return numbers.find(field)->second;
  }
};

TEST_CASE("tensorboard: a resumed run purges later steps of earlier files, and its file sorts after them even if the clock went back") {
  TemporaryFolder folder;
  std::filesystem::create_directories(folder / "events");
  // Of a clock that was ahead, of none that is a second, and beyond ten digits, after which names sort otherwise than numbers.
  for (const char* const name : {"4000000000.host.1", "x.host.1", "99999999999.host.1"})
    write_file_atomically(folder / "events" + "/events.out.tfevents." + name, "");
  const std::string first = TensorBoardWriter(folder / "events", 7).path(), second = TensorBoardWriter(folder / "events", 7).path();
  CHECK(first.find("events.out.tfevents.4000000001.") != std::string::npos);
  CHECK(second.find("events.out.tfevents.4000000002.") != std::string::npos);
  const std::string data = read_small_file(second, 1 << 20);
  const size_t after_version = 16 + little_endian(data, 0, 8);
  const Message restart(std::string_view(data).substr(after_version + 12, little_endian(data, after_version, 8)));
  CHECK(restart.number(2) == 8);
  CHECK(restart.at(7).number(1) == 1);  // START
}

TEST_CASE("tensorboard: settings and the end of a session, as the page HPARAMS reads them") {
  const Message event(tensorboard_session_start_event({{"lr", 0.5}, {"resume", true}, {"model", std::string("cnn")}}, 12.0));
  const Message value = event.at(5).at(1);
  CHECK(value.text(1) == "_hparams_/session_start_info");
  CHECK(value.at(8).number(1) == 1);  // A tensor, without which the event is thrown away.
  const Message plugin = value.at(9).at(1);
  CHECK(plugin.text(1) == "hparams");
  const Message session = plugin.at(2).at(3);
  CHECK(std::bit_cast<double>(session.number(5)) == 12.0);
  std::map<std::string, Message> entries;
  for (auto [at, end] = session.bytes.equal_range(1); at != end; ++at) {
    const Message entry(at->second);
    entries.emplace(entry.text(1), entry.at(2));
  }
  CHECK(entries.size() == 3);
  CHECK(std::bit_cast<double>(entries.at("lr").number(2)) == 0.5);
  CHECK(entries.at("resume").number(4) == 1);
  CHECK(entries.at("model").text(3) == "cnn");
  const Message ended = Message(tensorboard_session_end_event(true, 13.0)).at(5).at(1);
  CHECK(ended.text(1) == "_hparams_/session_end_info");
  CHECK(ended.at(9).at(1).at(2).at(4).number(1) == 1);
  CHECK(Message(tensorboard_session_end_event(false, 13.0)).at(5).at(1).at(9).at(1).at(2).at(4).number(1) == 2);
}

TEST_CASE("tensorboard: a picture, with its size and kind from the PNG; what is none is left out") {
  const std::string begin("\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\1\2\0\0\0\7\x08", 25);
  for (const auto& [kind, channels] : {std::pair('\0', 1), std::pair('\2', 3)}) {
    const std::string png = begin + kind + "rest";
    const Message event(tensorboard_picture_event("p", 7, png, 1.5));
    CHECK(event.number(2) == 7);
    const Message value = event.at(5).at(1), image = value.at(4);
    CHECK(value.text(1) == "p");
    CHECK(image.number(1) == 7);    // Height
    CHECK(image.number(2) == 258);  // Width
    CHECK(image.number(3) == static_cast<uint64_t>(channels));
    CHECK(image.text(4) == png);
  }
  CHECK(tensorboard_picture_event("p", 7, begin + '\3' + "rest", 1.5).empty());  // A palette.
  CHECK(tensorboard_picture_event("p", 7, begin, 1.5).empty());
  CHECK(tensorboard_picture_event("p", 7, "GIF89a", 1.5).empty());
}

TEST_CASE("tensorboard: a folder that cannot be made is one clear line") {
  TemporaryFolder folder;
  write_file_atomically(folder / "file", "x");
  CHECK_THROWS_WITH_AS(TensorBoardWriter(folder / "file/events"), doctest::Contains("file/events"), Error);
}

}  // namespace
}  // namespace cohort
