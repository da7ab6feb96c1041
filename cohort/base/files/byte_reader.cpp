// Plain and gzip files (RFC 1952) through one interface. A gzip file may have several members, as `cat a.gz b.gz` makes; whatever else
// follows a member is an error. zlib checks each member's CRC-32 and length.

#include "cohort/base/files/byte_reader.h"

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

constexpr int64_t kInputChunk = 1 << 18;
constexpr int64_t kMaxDeflateRatio = 1032;   // Longest match (258 bytes) in the fewest bits (2).
constexpr int64_t kMaxSystemRead = 1 << 30;  // One read(2) moves at most 2^31 - 4096 bytes.
constexpr uint8_t kGzipMagic[2] = {0x1f, 0x8b};

}  // namespace

InputFile::InputFile(const std::string& path) : path_(path), descriptor_(open_regular_file(path, &num_bytes_)) {}

int64_t InputFile::read(uint8_t* out, int64_t num_bytes) {
  int64_t done = 0;
  while (done < num_bytes) {
    const ssize_t got = ::read(descriptor_.get(), out + done, static_cast<size_t>(std::min(num_bytes - done, kMaxSystemRead)));
    if (got == 0) break;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno(ErrorCode::kBadInput, "read", concat(path_, " at offset ", offset_ + done), errno);
    done += got;
  }
  offset_ += done;
  return done;
}

int64_t InputFile::peek(uint8_t* out, int64_t num_bytes) const {
  const ssize_t got = ::pread(descriptor_.get(), out, static_cast<size_t>(num_bytes), 0);
  return std::max<ssize_t>(got, 0);
}

void InputFile::read_exactly(uint8_t* out, int64_t num_bytes) {
  const int64_t begin = offset_;
  const int64_t got = read(out, num_bytes);
  if (got == num_bytes) return;
  fail(ErrorCode::kBadInput, path_, " is truncated at offset ", begin + got, ": expected ", num_bytes, " bytes from offset ", begin,
       ", found ", got);
}

struct ByteReader::Inflater {
  Inflater() : input(kInputChunk) {
    if (inflateInit2(&stream, 15 + 16) != Z_OK) fail(ErrorCode::kFailed, "zlib cannot start: ", stream.msg ? stream.msg : "no memory");
  }
  ~Inflater() { inflateEnd(&stream); }

  z_stream stream{};
  std::vector<uint8_t> input;
  int64_t consumed_before = 0;  // Bytes of the file before the chunk in `input`.
  int64_t chunk_bytes = 0;
  bool in_member = true;

  int64_t file_offset() const { return consumed_before + chunk_bytes - stream.avail_in; }
};

ByteReader::ByteReader(const std::string& path) : file_(path) {
  uint8_t magic[2] = {};
  if (file_.peek(magic, 2) == 2 && std::equal(magic, magic + 2, kGzipMagic)) inflater_ = std::make_unique<Inflater>();
}

ByteReader::~ByteReader() = default;

int64_t ByteReader::max_bytes() const {
  if (!is_gzip()) return file_bytes();
  return file_bytes() > std::numeric_limits<int64_t>::max() / kMaxDeflateRatio ? std::numeric_limits<int64_t>::max()
                                                                               : file_bytes() * kMaxDeflateRatio;
}

int64_t ByteReader::read(uint8_t* out, int64_t num_bytes) {
  const int64_t got = is_gzip() ? read_inflated(out, num_bytes) : file_.read(out, num_bytes);
  offset_ += got;
  return got;
}

int64_t ByteReader::read_inflated(uint8_t* out, int64_t num_bytes) {
  Inflater& in = *inflater_;
  int64_t done = 0;
  while (done < num_bytes) {
    if (in.stream.avail_in == 0) {
      in.consumed_before += in.chunk_bytes;
      in.chunk_bytes = file_.read(in.input.data(), kInputChunk);
      in.stream.next_in = in.input.data();
      in.stream.avail_in = static_cast<uInt>(in.chunk_bytes);
      if (in.chunk_bytes == 0 && !in.in_member) break;
      if (in.chunk_bytes == 0)
        fail(ErrorCode::kBadInput, path(), ": gzip data is truncated at offset ", in.file_offset(), " after ", offset_ + done,
             " inflated bytes");
    }
    if (!in.in_member) {
      if (*in.stream.next_in != kGzipMagic[0]) {
        fail(ErrorCode::kBadInput, path(), ": trailing bytes at offset ", in.file_offset(),
             ": expected the end of the file or another gzip member");
      }
      inflateReset(&in.stream);
      in.in_member = true;
    }
    const uInt room = static_cast<uInt>(std::min(num_bytes - done, kMaxSystemRead));
    in.stream.next_out = out + done;
    in.stream.avail_out = room;
    const int status = inflate(&in.stream, Z_NO_FLUSH);
    done += room - in.stream.avail_out;
    in.in_member = status != Z_STREAM_END;
    if (in.in_member && status != Z_OK) {
      fail(ErrorCode::kBadInput, path(), ": gzip data is corrupt near offset ", in.file_offset(), ": ",
           in.stream.msg ? in.stream.msg : "bad stream");
    }
  }
  return done;
}

}  // namespace cohort
