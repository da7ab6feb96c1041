#pragma once
// For tests of data: files made on the spot, and the text of an expected error.

#include <doctest/doctest.h>
#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <numeric>
#include <string>
#include <vector>

#include "cohort/base/files/file.h"
#include "cohort/data/source/source.h"
#include "tests/support/errors.h"

namespace cohort::testing {

using cohort::error_of;

/// A fresh folder that goes with the object.
class TempFolder {
 public:
  const std::string& path() const { return folder_.path(); }
  std::string path(const std::string& name) const { return folder_ / name; }
  /// Writes a file (and the folders above it); returns its path.
  std::string write(const std::string& name, const std::string& content) const {
    const std::filesystem::path file = path(name);
    std::filesystem::create_directories(file.parent_path());
    std::filesystem::remove(file);  // Some file systems flush to disk when a file is written over, which takes milliseconds.
    std::ofstream(file, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
    return file.string();
  }

 private:
  TemporaryFolder folder_{"cohort-data"};
};

/// Every sample, in order.
inline Batch all_of(const DataSource& source) {
  std::vector<int64_t> indices(static_cast<size_t>(source.num_samples()));
  std::iota(indices.begin(), indices.end(), 0);
  Batch batch;
  source.read(indices, batch);
  return batch;
}

inline std::string gzip(const std::string& content) {
  z_stream stream{};
  REQUIRE(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(deflateBound(&stream, content.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
  stream.avail_in = static_cast<uInt>(content.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

inline std::string big_endian(std::initializer_list<uint32_t> numbers) {
  std::string out;
  for (const uint32_t number : numbers) {
    for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(number >> shift);
  }
  return out;
}

/// Pixel i of the file is i mod 251.
inline std::string idx_images(uint32_t count, uint32_t rows, uint32_t columns) {
  std::string out = big_endian({0x803, count, rows, columns});
  for (uint32_t i = 0; i < count * rows * columns; ++i) out += static_cast<char>(i % 251);
  return out;
}

/// Label i is i mod 10.
inline std::string idx_labels(uint32_t count) {
  std::string out = big_endian({0x801, count});
  for (uint32_t i = 0; i < count; ++i) out += static_cast<char>(i % 10);
  return out;
}

/// Runs `action`, which may succeed or throw Error(kBadInput), but nothing else. True where it succeeded.
inline bool succeeds_or_is_refused(const std::function<void()>& action) {
  try {
    action();
    return true;
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kBadInput);
    return false;
  }
}

}  // namespace cohort::testing
