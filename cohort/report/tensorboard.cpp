// TensorBoard event files, scalars only.
//
// A file is a row of TFRecords:  uint64 length | uint32 masked crc of those 8 bytes | payload | uint32 masked crc of the payload,
// little-endian. A masked crc is the CRC-32C rotated right by 15 bits plus 0xa282ead8, so that the crc of data that holds crcs stays
// useful. A payload is the protobuf message `Event` (tensorflow/core/util/event.proto), of which we write
//   1 wall_time: double, 2 step: int64, 3 file_version: string ("brain.Event:2", in the first record only), 5 summary: Summary
// where Summary has 1 value: Value, and Value has 1 tag: string, 2 simple_value: float. As in proto3, a step of 0 is left out.

#include "cohort/report/tensorboard.h"

#include <unistd.h>

#include <bit>
#include <chrono>
#include <climits>
#include <filesystem>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/report/crc32c.h"

namespace cohort::report {
namespace {

constexpr size_t kFlushBytes = size_t{64} * 1024;

// Low three bits of a protobuf key: how the field's value is stored.
enum WireType { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };

template <typename Unsigned>
void append_little_endian(std::string& out, Unsigned value) {
  for (size_t i = 0; i < sizeof(Unsigned); ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
}

void append_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7f) | 0x80);
  out += static_cast<char>(value);
}

void append_key(std::string& out, int field, WireType type) { append_varint(out, static_cast<uint64_t>(field) << 3 | type); }

void append_bytes(std::string& out, int field, std::string_view bytes) {
  append_key(out, field, kLengthDelimited);
  append_varint(out, bytes.size());
  out += bytes;
}

void append_wall_time(std::string& out, double seconds) {
  append_key(out, 1, kFixed64);
  append_little_endian(out, std::bit_cast<uint64_t>(seconds));
}

uint32_t masked_crc(std::string_view data) { return std::rotr(crc32c(data), 15) + 0xa282ead8u; }

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, sizeof name - 1) == 0 && name[0] ? name : "localhost";
}

}  // namespace

std::string tfrecord(std::string_view event) {
  std::string out;
  out.reserve(event.size() + 16);
  append_little_endian(out, static_cast<uint64_t>(event.size()));
  append_little_endian(out, masked_crc(out));
  out += event;
  append_little_endian(out, masked_crc(event));
  return out;
}

std::string tensorboard_version_event(double wall_seconds) {
  std::string event;
  append_wall_time(event, wall_seconds);
  append_bytes(event, 3, "brain.Event:2");
  return event;
}

std::string tensorboard_scalar_event(std::string_view tag, int64_t step, float value, double wall_seconds) {
  std::string summary_value;
  append_bytes(summary_value, 1, tag);
  append_key(summary_value, 2, kFixed32);
  append_little_endian(summary_value, std::bit_cast<uint32_t>(value));
  std::string summary;
  append_bytes(summary, 1, summary_value);

  std::string event;
  append_wall_time(event, wall_seconds);
  if (step != 0) {
    append_key(event, 2, kVarint);
    append_varint(event, static_cast<uint64_t>(step));
  }
  append_bytes(event, 5, summary);
  return event;
}

TensorBoardWriter::TensorBoardWriter(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail_errno(ErrorCode::kFailed, "create", folder, error.value());
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  // TensorBoard finds the file by "tfevents" in its name, and reads a folder's files in the order of their names.
  file_.emplace(concat(folder, "/events.out.tfevents.", static_cast<int64_t>(now), ".", host_name(), ".", getpid()));
  // A second writer of one process within one second appends to the same file; the version stands at its beginning only.
  if (file_->bytes() == 0) buffer_ = tfrecord(tensorboard_version_event(now));
  flush();
}

TensorBoardWriter::~TensorBoardWriter() {
  try {
    flush();
  } catch (const Error&) {
    // A destructor cannot report it; who wants to know calls flush() first.
  }
}

void TensorBoardWriter::scalar(const std::string& tag, int64_t step, double value, double wall_seconds) {
  buffer_ += tfrecord(tensorboard_scalar_event(tag, step, static_cast<float>(value), wall_seconds));
  if (buffer_.size() >= kFlushBytes) flush();
}

bool TensorBoardWriter::flush() {
  // Emptied in any case: a disk that stays full must not fill the memory.
  const std::string pending = std::exchange(buffer_, {});
  if (const int reason = pending.empty() ? 0 : file_->append(pending); reason != 0)
    fail_errno(ErrorCode::kFailed, "write", file_->path(), reason);
  return !pending.empty();
}

}  // namespace cohort::report
