// The binary version of CIFAR-10 (A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009): a file is a sequence of
// records of 3,073 bytes, a label 0..9 and 1,024 bytes each of red, green and blue, rows from the top. There are no other checks than the
// file's size and the range of the labels.

#include "cohort/data/source/openers.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/files/byte_reader.h"
#include "cohort/base/text/text.h"
#include "cohort/data/images/image_source.h"

namespace cohort {
namespace {

constexpr int64_t kNumClasses = 10, kPixelBytes = int64_t{3} * 32 * 32, kRecordBytes = 1 + kPixelBytes;
constexpr int64_t kChunkRecords = 256;
constexpr int64_t kMaxNamesBytes = 4096;

std::vector<std::string> existing_files(const std::string& folder) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error))
    fail(ErrorCode::kBadInput, "no folder ", folder, ": expected one with data_batch_1.bin");
  std::vector<std::string> paths;
  for (int i = 1; i <= 5; ++i) {
    const std::string path = (std::filesystem::path(folder) / concat("data_batch_", i, ".bin")).string();
    if (std::filesystem::exists(path, error)) paths.push_back(path);
  }
  if (paths.empty())
    fail(ErrorCode::kBadInput, folder, " has no CIFAR-10 files: expected at least one of data_batch_1.bin to data_batch_5.bin");
  return paths;
}

int64_t num_records(const InputFile& file) {
  const int64_t bytes = file.num_bytes(), whole = bytes / kRecordBytes;
  if (bytes == 0) fail(ErrorCode::kBadInput, file.path(), " is empty: expected CIFAR-10 records of ", kRecordBytes, " bytes");
  if (bytes % kRecordBytes != 0) {
    fail(ErrorCode::kBadInput, file.path(), " is truncated: expected a record of ", kRecordBytes, " bytes at offset ", whole * kRecordBytes,
         ", found ", bytes - whole * kRecordBytes, " bytes");
  }
  return whole;
}

/// Reads all records of `file` into labels and pixels.
void read_records(InputFile& file, int64_t count, uint8_t* labels, uint8_t* pixels) {
  std::vector<uint8_t> chunk(static_cast<size_t>(kChunkRecords * kRecordBytes));
  for (int64_t at = 0; at < count; at += kChunkRecords) {
    const int64_t records = std::min(kChunkRecords, count - at);
    file.read_exactly(chunk.data(), records * kRecordBytes);
    for (int64_t i = 0; i < records; ++i) {
      const uint8_t* record = chunk.data() + i * kRecordBytes;
      if (record[0] >= kNumClasses) {
        fail(ErrorCode::kBadInput, file.path(), ": label ", int{record[0]}, " at offset ", (at + i) * kRecordBytes, ": expected 0 to ",
             kNumClasses - 1);
      }
      labels[at + i] = record[0];
      std::copy_n(record + 1, kPixelBytes, pixels + (at + i) * kPixelBytes);
    }
  }
}

/// The lines of batches.meta.txt where it exists, else the names that the data set was published with.
std::vector<std::string> class_names(const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / "batches.meta.txt").string();
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return {"airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"};
  }
  InputFile file(path);
  if (file.num_bytes() > kMaxNamesBytes) {
    fail(ErrorCode::kBadInput, path, " has ", file.num_bytes(), " bytes: expected ", kNumClasses, " class names in at most ",
         kMaxNamesBytes, " bytes");
  }
  std::string text(static_cast<size_t>(file.num_bytes()), '\0');
  file.read_exactly(reinterpret_cast<uint8_t*>(text.data()), file.num_bytes());
  std::vector<std::string> names;
  for (const std::string& line : split(text, '\n')) {
    if (!trim(line).empty()) names.push_back(trim(line));
  }
  if (std::ssize(names) != kNumClasses) fail(ErrorCode::kBadInput, path, ": expected ", kNumClasses, " class names, found ", names.size());
  return names;
}

/// Reads all records of the files.
ImagePixels read_files(const std::string& folder, const std::vector<std::string>& paths) {
  int64_t total = 0;
  std::vector<std::pair<std::string, int64_t>> parts;
  for (const std::string& path : paths) {
    const int64_t count = num_records(InputFile(path));
    if (count > kMaxDataBytes / kPixelBytes - total) {
      fail(ErrorCode::kBadInput, path, ": ", count, " records from offset 0 are more than the limit of ", kMaxDataBytes,
           " bytes in all files");
    }
    total += count;
    parts.emplace_back(path, count);
  }
  ImagePixels pixels{ByteBuffer(total * kPixelBytes, folder), ByteBuffer(total, folder)};
  int64_t at = 0;
  for (const auto& [path, count] : parts) {
    InputFile file(path);
    read_records(file, count, pixels.labels.data() + at, pixels.values.data() + at * kPixelBytes);
    at += count;
  }
  return pixels;
}

}  // namespace

DataSet open_cifar10(const std::string& folder, const DataOptions& options) {
  ImagePixels pixels = read_files(folder, existing_files(folder));
  const DataShape shape{DataShape::Kind::kImage, {3, 32, 32}, kNumClasses, class_names(folder)};
  DataSet data = split_images(folder, std::move(pixels), shape, options);
  const std::string test = (std::filesystem::path(folder) / "test_batch.bin").string();
  std::error_code error;
  if (std::filesystem::exists(test, error))
    data.test = test_pictures(dynamic_cast<const ImageSource&>(*data.train), test, read_files(folder, {test}), shape, options);
  return data;
}

}  // namespace cohort
