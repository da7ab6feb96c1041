#include "cohort/report/tensorboard.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

#include "cohort/report/crc32c.h"

namespace cohort::report {
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
  CHECK(num_records == 2002);
}

TEST_CASE("tensorboard: a folder that cannot be made is one clear line") {
  TemporaryFolder folder;
  write_file_atomically(folder / "file", "x");
  CHECK_THROWS_WITH_AS(TensorBoardWriter(folder / "file/events"), doctest::Contains("file/events"), Error);
}

}  // namespace
}  // namespace cohort::report
