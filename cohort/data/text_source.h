#pragma once
// Bytes of text: a sample is `context` bytes, its targets are the bytes one later.

#include <memory>
#include <string>
#include <vector>

#include "cohort/data/byte_buffer.h"
#include "cohort/data/source.h"

namespace cohort {

/// The bytes [begin, end) of `text`. Sample i of context C: tokens are bytes [i C, i C + C), targets bytes [i C + 1, i C + C + 1), so there
/// are floor((end - begin - 1) / C) samples.
class TextSource : public DataSource {
 public:
  TextSource(std::shared_ptr<const ByteBuffer> text, int64_t begin, int64_t end, int64_t context);

  const DataShape& shape() const override { return shape_; }
  int64_t num_samples() const override { return num_samples_; }
  void read(std::span<const int64_t> indices, Batch& batch) const override;

 private:
  std::shared_ptr<const ByteBuffer> text_;
  int64_t begin_, num_samples_;
  DataShape shape_;
};

/// The files that make up the text of `path`: itself, or all regular files under it by path. Each file counts once, under its own name if
/// that is in the folder: a symbolic link to a file that is there too is skipped, so is a second hard link; a link to a folder is not
/// followed. What cannot be read, such as a link to nothing: Error(kBadInput).
std::vector<std::string> text_files(const std::string& path);

/// Opens the bytes of text_files(path), one after the other; the last are for validation. No byte belongs to both parts.
DataSet open_text(const std::string& path, const DataOptions& options);

}  // namespace cohort
