// The IDX format (Y. LeCun, "The MNIST database of handwritten digits"): all numbers are big-endian, 32 bits.
//
//   images   0x00000803, count, rows, columns, then count x rows x columns bytes
//   labels   0x00000801, count, then count bytes
//
// Steps: read the header; check every number in it against limits whose products cannot overflow; check what it promises against what the
// file can hold (its size, or 1032 times its size for gzip); only then allocate, read, and see that nothing follows. A small file thus can
// claim at most 1032 times its own size, and even that memory is touched only as far as real content goes.

#include "cohort/data/images/idx.h"

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "cohort/base/fail.h"
#include "cohort/base/files/byte_reader.h"

namespace cohort {
namespace {

constexpr uint32_t kImagesMagic = 0x00000803;
constexpr uint32_t kLabelsMagic = 0x00000801;
constexpr int64_t kMaxSide = 1 << 16;
constexpr int64_t kImagesHeaderBytes = 16;
constexpr int64_t kLabelsHeaderBytes = 8;

std::string hex(uint32_t value) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08x", value);
  return text;
}

std::string_view kind_of(uint32_t magic) { return magic == kImagesMagic ? "images" : "labels"; }

/// The numbers of a header as far as the file has them.
struct Header {
  uint32_t fields[4] = {};
  explicit Header(ByteReader& in, uint32_t magic, int64_t num_bytes) {
    uint8_t bytes[kImagesHeaderBytes];
    const std::string& path = in.path();
    const int64_t got = in.read(bytes, num_bytes);
    if (got == 0)
      fail(ErrorCode::kBadInput, path, in.is_gzip() ? " holds nothing" : " is empty", ": expected an IDX file of ", kind_of(magic));
    for (int64_t i = 0; i < got; ++i) fields[i / 4] = fields[i / 4] << 8 | bytes[i];
    if (got >= 4) check_magic(path, magic);
    if (got < num_bytes) {
      fail(ErrorCode::kBadInput, path, " is truncated at offset ", got, ": expected an IDX header of ", num_bytes, " bytes, found ", got);
    }
  }

  void check_magic(const std::string& path, uint32_t magic) const {
    const uint32_t other = magic == kImagesMagic ? kLabelsMagic : kImagesMagic;
    if (fields[0] == other) {
      fail(ErrorCode::kBadInput, path, ": ", kind_of(other), " given as ", kind_of(magic), " (magic number at offset 0: expected ",
           hex(magic), ", found ", hex(other), ")");
    }
    if (fields[0] != magic) {
      fail(ErrorCode::kBadInput, path, " is not an IDX file of ", kind_of(magic), ": expected the magic number ", hex(magic),
           " at offset 0, found ", hex(fields[0]));
    }
  }
};

int64_t checked_field(const std::string& path, const Header& header, int index, const char* name, int64_t maximum) {
  const int64_t value = header.fields[index];
  if (value == 0) fail(ErrorCode::kBadInput, path, ": number of ", name, " at offset ", index * 4, " is 0: expected at least 1");
  if (value > maximum)
    fail(ErrorCode::kBadInput, path, ": number of ", name, " at offset ", index * 4, " is ", value, ": expected at most ", maximum);
  return value;
}

/// Reads the `num_bytes` that the header promised (`promise` says how), which must be all that is left.
ByteBuffer read_rest(ByteReader& in, int64_t num_bytes, const std::string& promise) {
  const int64_t begin = in.offset();
  const auto truncated = [&](int64_t at, const std::string& found) {
    fail(ErrorCode::kBadInput, in.path(), " is truncated at offset ", at, ": expected ", num_bytes, " bytes from offset ", begin, " (",
         promise, "), found ", found);
  };
  if (num_bytes > in.max_bytes() - (in.is_gzip() ? 0 : begin)) {
    if (!in.is_gzip()) truncated(in.file_bytes(), std::to_string(in.file_bytes() - begin));
    fail(ErrorCode::kBadInput, in.path(), ": expected ", num_bytes, " bytes from offset ", begin, " (", promise, "), but a gzip file of ",
         in.file_bytes(), " bytes holds at most ", in.max_bytes());
  }
  ByteBuffer content(num_bytes, in.path());
  const int64_t got = in.read(content.data(), num_bytes);
  if (got < num_bytes) truncated(begin + got, std::to_string(got));
  uint8_t extra = 0;  // Asking for one more byte also makes gzip verify its checksum.
  if (in.read(&extra, 1) != 0) {
    fail(ErrorCode::kBadInput, in.path(), ": trailing bytes at offset ", begin + num_bytes, ": expected the end of the file (", promise,
         ")");
  }
  return content;
}

}  // namespace

IdxImages read_idx_images(const std::string& path) {
  ByteReader in(path);
  const Header header(in, kImagesMagic, kImagesHeaderBytes);
  IdxImages images;
  images.count = checked_field(path, header, 1, "images", kMaxSamples);
  images.rows = checked_field(path, header, 2, "rows", kMaxSide);
  images.columns = checked_field(path, header, 3, "columns", kMaxSide);
  const int64_t image_bytes = images.rows * images.columns;  // At most 2^32.
  const std::string promise = concat(images.count, " images of ", images.rows, "x", images.columns);
  if (images.count > kMaxDataBytes / image_bytes) {
    fail(ErrorCode::kBadInput, path, ": the header at offset 4 promises ", promise, ", more than the limit of ", kMaxDataBytes, " bytes");
  }
  images.pixels = read_rest(in, images.count * image_bytes, promise);
  return images;
}

IdxLabels read_idx_labels(const std::string& path, int64_t num_classes) {
  ByteReader in(path);
  const Header header(in, kLabelsMagic, kLabelsHeaderBytes);
  const int64_t count = checked_field(path, header, 1, "labels", kMaxSamples);
  IdxLabels labels{read_rest(in, count, concat(count, " labels"))};
  const auto bytes = labels.labels.bytes();
  const auto bad = std::ranges::find_if(bytes, [&](uint8_t label) { return label >= num_classes; });
  if (bad != bytes.end()) {
    fail(ErrorCode::kBadInput, path, ": label ", int{*bad}, " at offset ", kLabelsHeaderBytes + (bad - bytes.begin()), ": expected 0 to ",
         num_classes - 1);
  }
  return labels;
}

void read_idx_pair(const std::string& images_path, const std::string& labels_path, int64_t num_classes, IdxImages& images,
                   IdxLabels& labels) {
  labels = read_idx_labels(labels_path, num_classes);  // The small file first: its faults show before the large one is read.
  images = read_idx_images(images_path);
  if (images.count != labels.count()) {
    fail(ErrorCode::kBadInput, images_path, " has ", images.count, " images but ", labels_path, " has ", labels.count(),
         " labels: expected as many");
  }
}

}  // namespace cohort
