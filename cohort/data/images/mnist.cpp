// The IDX format (Y. LeCun, "The MNIST database of handwritten digits"): all numbers are big-endian, 32 bits.
//
//   images   0x00000803, count, rows, columns, then count x rows x columns bytes
//   labels   0x00000801, count, then count bytes
//
// Steps: read the header; check its numbers against limits whose products cannot overflow, and against what the file can hold (its size, or
// 1032 times its size for gzip); only then allocate, read, and check that nothing follows.

#include "cohort/data/images/mnist.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/files/byte_reader.h"
#include "cohort/data/images/image_source.h"

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

/// The fields of a header.
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

/// Reads `num_bytes`, which must be the rest of the file; `promise` describes them in errors.
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
  uint8_t extra = 0;  // Reading one more byte also makes gzip verify its checksum.
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
  labels = read_idx_labels(labels_path, num_classes);  // The small file first, to fail early.
  images = read_idx_images(images_path);
  if (images.count != labels.count()) {
    fail(ErrorCode::kBadInput, images_path, " has ", images.count, " images but ", labels_path, " has ", labels.count(),
         " labels: expected as many");
  }
}

namespace {

constexpr char kDebianFolder[] = "/usr/share/datasets/fashion-mnist";

/// The file of `stem` ("train-images") and `suffix` ("idx3-ubyte") under the first of its names that exists in `folder`, or "".
std::string find_part(const std::string& folder, const std::string& stem, const std::string& suffix) {
  for (const char* joint : {"-", "."}) {  // The second is what some archives unpack to.
    for (const char* ending : {"", ".gz"}) {
      const std::string path = (std::filesystem::path(folder) / concat(stem, joint, suffix, ending)).string();
      std::error_code error;
      if (std::filesystem::exists(path, error)) return path;
    }
  }
  return "";
}

struct Files {
  std::string images, labels;
};

/// The files of "train" or "t10k", empty names if both are missing. Half a pair is an error.
Files find_set(const std::string& folder, const std::string& set) {
  const std::string images = set + "-images", labels = set + "-labels";
  const Files files{find_part(folder, images, "idx3-ubyte"), find_part(folder, labels, "idx1-ubyte")};
  if (files.images.empty() == files.labels.empty()) return files;
  if (files.labels.empty()) fail(ErrorCode::kBadInput, files.images, " has no labels beside it: expected ", labels, "-idx1-ubyte[.gz]");
  fail(ErrorCode::kBadInput, files.labels, " has no images beside it: expected ", images, "-idx3-ubyte[.gz]");
}

struct Sets {
  Files train, test;  ///< `test` may have empty names.
};

/// The train files with the t10k files as test set, or the t10k files alone.
Sets find_sets(const std::string& folder, const std::string& advice) {
  std::error_code error;
  if (!std::filesystem::exists(folder, error)) fail(ErrorCode::kBadInput, "no folder ", folder, advice);
  if (!std::filesystem::is_directory(folder, error)) fail(ErrorCode::kBadInput, folder, " is not a folder: expected one with IDX files");
  Files train = find_set(folder, "train"), test = find_set(folder, "t10k");
  if (!train.images.empty()) return {train, test};
  if (!test.images.empty()) return {test, {}};
  fail(ErrorCode::kBadInput, folder, " has no IDX files: expected train-images-idx3-ubyte[.gz] and train-labels-idx1-ubyte[.gz]", advice);
}

ImagePixels read_set(const Files& files, DataShape& shape) {
  IdxImages images;
  IdxLabels labels;
  read_idx_pair(files.images, files.labels, shape.num_classes, images, labels);
  shape.input = {1, images.rows, images.columns};
  return {std::move(images.pixels), std::move(labels.labels)};
}

DataSet open_idx_folder(const std::string& folder, std::vector<std::string> class_names, const DataOptions& options,
                        const std::string& advice) {
  const Sets sets = find_sets(folder, advice);
  const int64_t num_classes = static_cast<int64_t>(class_names.size());
  DataShape shape{DataShape::Kind::kImage, {}, num_classes, std::move(class_names)};
  ImagePixels pixels = read_set(sets.train, shape);
  DataSet data = split_images(sets.train.images, std::move(pixels), shape, options);
  if (sets.test.images.empty()) return data;
  pixels = read_set(sets.test, shape);
  data.test = test_pictures(dynamic_cast<const ImageSource&>(*data.train), sets.test.images, std::move(pixels), shape, options);
  return data;
}

}  // namespace

DataSet open_mnist(const std::string& folder, const DataOptions& options) {
  return open_idx_folder(folder, {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}, options, "");
}

DataSet open_fashion_mnist(const std::string& folder, const DataOptions& options) {
  const std::vector<std::string> names{"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
                                       "Sandal",      "Shirt",   "Sneaker",  "Bag",   "Ankle boot"};
  if (!folder.empty()) return open_idx_folder(folder, names, options, "");
  return open_idx_folder(kDebianFolder, names, options, "; on Debian and Ubuntu: apt install dataset-fashion-mnist");
}

}  // namespace cohort
