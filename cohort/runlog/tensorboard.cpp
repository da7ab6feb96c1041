// TensorBoard event files.
//
// A file is a sequence of TFRecords:  uint64 length | uint32 masked crc of those 8 bytes | payload | uint32 masked crc of the payload,
// little-endian. A masked crc is the CRC-32C rotated right by 15 bits plus 0xa282ead8, so that the crc of data that holds crcs stays
// useful. A payload is the protobuf message `Event` (tensorflow/core/util/event.proto), of which we write
//   1 wall_time: double, 2 step: int64, 3 file_version: string ("brain.Event:2", in the first record only), 5 summary: Summary,
//   7 session_log: SessionLog
// where a SessionLog has 1 status (1 START: discards this step and later ones of earlier files). Summary has 1 value: Value, and
// Value has 1 tag: string, and one of 2 simple_value: float, 4 image: Image, 8 tensor: TensorProto (with 9 metadata: SummaryMetadata). As
// in proto3, a step of 0 is left out. An Image has 1 height, 2 width, 3 colorspace (1 gray, 3 RGB), 4 the bytes of the PNG. The page
// HPARAMS reads metadata of a plug-in (tensorboard/plugins/hparams/plugin_data.proto): 1 plugin_data with 1 plugin_name, 2 content =
// HParamsPluginData, of which 3 session_start_info has 1 hparams: map<string, google.protobuf.Value>, 5 start_time_secs, and
// 4 session_end_info 1 status (1 success, 2 failure), 2 end_time_secs.
//
// CRC-32C is the remainder of the message, taken as a polynomial over GF(2), divided by 0x1EDC6F41; bits reflected, register preset to ones
// and inverted at the end. A table holds the effect of each byte value on the register; each byte of the message is one look-up and one
// shift: about 2 ns. Event files grow by a few hundred bytes a second, so neither slicing nor the SSE4.2 instruction pays off.
// Source: RFC 3720, appendix B.4 (polynomial and test vectors); Sarwate 1988 (the table method).

#include "cohort/runlog/tensorboard.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <chrono>
#include <climits>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

constexpr size_t kFlushBytes = size_t{64} * 1024;
constexpr std::string_view kPrefix = "events.out.tfevents.";
constexpr int64_t kLastSecond = 9'999'999'999;  // Of ten digits, so that names sort as numbers do.

constexpr uint32_t kReflectedPolynomial = 0x82f63b78;  // 0x1EDC6F41 with its bits in reverse order.

constexpr std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) remainder = (remainder >> 1) ^ (remainder & 1 ? kReflectedPolynomial : 0);
    table[byte] = remainder;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kCrcTable = make_crc_table();

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

void append_number(std::string& out, int field, uint64_t value) {
  append_key(out, field, kVarint);
  append_varint(out, value);
}

void append_double(std::string& out, int field, double value) {
  append_key(out, field, kFixed64);
  append_little_endian(out, std::bit_cast<uint64_t>(value));
}

void append_wall_time(std::string& out, double seconds) { append_double(out, 1, seconds); }

uint32_t big_endian(std::string_view bytes) {
  uint32_t value = 0;
  for (const char byte : bytes) value = value << 8 | static_cast<unsigned char>(byte);
  return value;
}

/// `value`: the encoded fields of the Value other than its tag.
std::string summary_event(std::string_view tag, int64_t step, const std::string& value, double wall_seconds) {
  std::string summary_value, summary, event;
  append_bytes(summary_value, 1, tag);
  append_bytes(summary, 1, summary_value + value);
  append_wall_time(event, wall_seconds);
  if (step != 0) append_number(event, 2, static_cast<uint64_t>(step));
  append_bytes(event, 5, summary);
  return event;
}

/// A Value whose metadata hold HParamsPluginData with `session` as its field `field`; its tensor is a dummy.
std::string session_event(std::string_view tag, int field, const std::string& session, double wall_seconds) {
  std::string data, plugin, metadata, dimension, shape, tensor, value;
  append_bytes(data, field, session);
  append_bytes(plugin, 1, "hparams");
  append_bytes(plugin, 2, data);
  append_bytes(metadata, 1, plugin);
  append_number(dimension, 1, 1);
  append_bytes(shape, 2, dimension);
  append_number(tensor, 1, 1);  // DT_FLOAT
  append_bytes(tensor, 2, shape);
  append_bytes(tensor, 5, std::string(4, '\0'));
  append_bytes(value, 9, metadata);
  append_bytes(value, 8, tensor);
  return summary_event(tag, 0, value, wall_seconds);
}

uint32_t masked_crc(std::string_view data) { return std::rotr(crc32c(data), 15) + 0xa282ead8u; }

/// TensorBoard reads files in the order of their names, so the seconds in a new name exceed those of all existing files, whatever the
/// clock is.
int64_t seconds_for_name(const std::string& folder, double now) {
  auto seconds = static_cast<int64_t>(now);
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    int64_t before = 0;
    const auto [end, problem] = std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), before);
    if (problem == std::errc() && end != name.data() + name.size() && *end == '.' && before < kLastSecond)
      seconds = std::max(seconds, before + 1);
  }
  return seconds;
}

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, sizeof name - 1) == 0 && name[0] ? name : "localhost";
}

}  // namespace

uint32_t crc32c(std::string_view data) {
  uint32_t state = 0xffffffff;
  for (const char byte : data) state = (state >> 8) ^ kCrcTable[(state ^ static_cast<unsigned char>(byte)) & 0xff];
  return ~state;
}

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
  std::string simple_value;
  append_key(simple_value, 2, kFixed32);
  append_little_endian(simple_value, std::bit_cast<uint32_t>(value));
  return summary_event(tag, step, simple_value, wall_seconds);
}

std::string tensorboard_picture_event(std::string_view tag, int64_t step, std::string_view png, double wall_seconds) {
  constexpr std::string_view kBegin("\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR", 16);
  constexpr unsigned char kGray = 0, kRgb = 2;
  // Width, height, bits, kind of colour.
  if (!png.starts_with(kBegin) || png.size() < 26) return "";
  const auto kind = static_cast<unsigned char>(png[25]);
  if (kind != kGray && kind != kRgb) return "";
  std::string image;
  append_number(image, 1, big_endian(png.substr(20, 4)));
  append_number(image, 2, big_endian(png.substr(16, 4)));
  append_number(image, 3, kind == kGray ? 1 : 3);
  append_bytes(image, 4, png);
  std::string value;
  append_bytes(value, 4, image);
  return summary_event(tag, step, value, wall_seconds);
}

std::string tensorboard_restart_event(int64_t step, double wall_seconds) {
  std::string session, event;
  append_number(session, 1, 1);
  append_wall_time(event, wall_seconds);
  append_number(event, 2, static_cast<uint64_t>(step));
  append_bytes(event, 7, session);
  return event;
}

std::string tensorboard_session_start_event(const std::vector<SessionSetting>& parameters, double wall_seconds) {
  std::string session;
  for (const SessionSetting& parameter : parameters) {
    std::string value;
    if (const auto* const number = std::get_if<double>(&parameter.value)) append_double(value, 2, *number);
    else if (const auto* const flag = std::get_if<bool>(&parameter.value)) append_number(value, 4, *flag ? 1 : 0);
    else append_bytes(value, 3, std::get<std::string>(parameter.value));
    std::string entry;
    append_bytes(entry, 1, parameter.name);
    append_bytes(entry, 2, value);
    append_bytes(session, 1, entry);
  }
  append_double(session, 5, wall_seconds);
  return session_event("_hparams_/session_start_info", 3, session, wall_seconds);
}

std::string tensorboard_session_end_event(bool succeeded, double wall_seconds) {
  std::string session;
  append_number(session, 1, succeeded ? 1 : 2);
  append_double(session, 2, wall_seconds);
  return session_event("_hparams_/session_end_info", 4, session, wall_seconds);
}

TensorBoardWriter::TensorBoardWriter(const std::string& folder, int64_t resume_step) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail_errno(ErrorCode::kFailed, "create", folder, error.value());
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  // TensorBoard finds the file by "tfevents" in its name.
  char seconds[24];
  std::snprintf(seconds, sizeof seconds, "%010lld", static_cast<long long>(seconds_for_name(folder, now)));
  file_.emplace(concat(folder, "/", kPrefix, seconds, ".", host_name(), ".", getpid()));
  buffer_ = tfrecord(tensorboard_version_event(now)) + tfrecord(tensorboard_restart_event(resume_step + 1, now));
  flush();
}

TensorBoardWriter::~TensorBoardWriter() {
  try {
    flush();
  } catch (const Error&) {
    // A destructor cannot report it; call flush() first.
  }
}

void TensorBoardWriter::scalar(const std::string& tag, int64_t step, double value, double wall_seconds) {
  add(tensorboard_scalar_event(tag, step, static_cast<float>(value), wall_seconds));
}

void TensorBoardWriter::picture(const std::string& tag, int64_t step, std::string_view png, double wall_seconds) {
  if (const std::string event = tensorboard_picture_event(tag, step, png, wall_seconds); !event.empty()) add(event);
}

void TensorBoardWriter::begin_session(const std::vector<SessionSetting>& parameters, double wall_seconds) {
  add(tensorboard_session_start_event(parameters, wall_seconds));
}

void TensorBoardWriter::end_session(bool succeeded, double wall_seconds) { add(tensorboard_session_end_event(succeeded, wall_seconds)); }

void TensorBoardWriter::add(std::string_view event) {
  buffer_ += tfrecord(event);
  if (buffer_.size() >= kFlushBytes) flush();
}

bool TensorBoardWriter::flush() {
  // Cleared even on failure: a full disk must not exhaust memory.
  const std::string pending = std::exchange(buffer_, {});
  if (const int reason = pending.empty() ? 0 : file_->append(pending); reason != 0)
    fail_errno(ErrorCode::kFailed, "write", file_->path(), reason);
  return !pending.empty();
}

}  // namespace cohort
