#pragma once
// Reads a regular file from front to back, as it is or inflated.

#include <cstdint>
#include <memory>
#include <string>

#include "cohort/base/files/file.h"

namespace cohort {

/// An open regular file. Error(kBadInput) with the path and the system's reason where it is missing, unreadable or not regular.
class InputFile {
 public:
  explicit InputFile(const std::string& path);

  const std::string& path() const { return path_; }
  int64_t num_bytes() const { return num_bytes_; }
  /// Fills `out` with the next `num_bytes`, fewer only at the end of the file; returns how many.
  int64_t read(uint8_t* out, int64_t num_bytes);
  /// Copies the file's first bytes without moving the read position; returns how many of `num_bytes` there are.
  int64_t peek(uint8_t* out, int64_t num_bytes) const;
  /// Like read(), but Error(kBadInput) "is truncated at offset ..." where the file has fewer.
  void read_exactly(uint8_t* out, int64_t num_bytes);

 private:
  std::string path_;
  int64_t num_bytes_ = 0, offset_ = 0;
  UniqueDescriptor descriptor_;
};

/// Reads a plain or gzip file (recognised by its first two bytes) in constant memory. One thread at a time.
class ByteReader {
 public:
  explicit ByteReader(const std::string& path);
  ~ByteReader();

  const std::string& path() const { return file_.path(); }
  bool is_gzip() const { return inflater_ != nullptr; }
  int64_t file_bytes() const { return file_.num_bytes(); }
  /// Upper bound of the content: the file's size, or 1032 times that for gzip (deflate's largest ratio).
  int64_t max_bytes() const;
  /// Offset of the next byte in the (inflated) content.
  int64_t offset() const { return offset_; }
  /// Fills `out` with the next `num_bytes`, fewer only at the end of the content; returns how many. Gzip that is truncated or damaged (its
  /// checksums are verified once its end is reached): Error(kBadInput) with the offset in the compressed file.
  int64_t read(uint8_t* out, int64_t num_bytes);

 private:
  struct Inflater;
  int64_t read_inflated(uint8_t* out, int64_t num_bytes);

  InputFile file_;
  std::unique_ptr<Inflater> inflater_;
  int64_t offset_ = 0;
};

}  // namespace cohort
