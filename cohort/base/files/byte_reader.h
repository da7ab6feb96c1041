#pragma once
// Reads a regular file from front to back, as it is or inflated.

#include <cstdint>
#include <memory>
#include <string>

#include "cohort/base/files/file.h"

namespace cohort {

/// An open regular file. Missing, unreadable or not regular (a folder, a pipe): Error(kBadInput) with the path and the system's reason.
class InputFile {
 public:
  explicit InputFile(const std::string& path);

  const std::string& path() const { return path_; }
  int64_t num_bytes() const { return num_bytes_; }
  /// Fills `out` with the next `num_bytes`, fewer only at the end of the file; returns how many.
  int64_t read(uint8_t* out, int64_t num_bytes);
  /// The file's first bytes, wherever reading stands; returns how many of `num_bytes` there are.
  int64_t peek(uint8_t* out, int64_t num_bytes) const;
  /// As read, but the file must have them all: "is truncated at offset ..." otherwise.
  void read_exactly(uint8_t* out, int64_t num_bytes);

 private:
  std::string path_;
  int64_t num_bytes_ = 0, offset_ = 0;
  UniqueDescriptor descriptor_;
};

/// Reads a file that may be gzip (told by its first two bytes, whatever its name); memory does not grow with the file. One thread at a
/// time.
class ByteReader {
 public:
  explicit ByteReader(const std::string& path);
  ~ByteReader();

  const std::string& path() const { return file_.path(); }
  bool is_gzip() const { return inflater_ != nullptr; }
  int64_t file_bytes() const { return file_.num_bytes(); }
  /// No more bytes than this can come out: the file's size, or 1032 times that for gzip (the most that deflate can pack).
  int64_t max_bytes() const;
  /// Offset of the next byte, in a gzip file that of the inflated content.
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
