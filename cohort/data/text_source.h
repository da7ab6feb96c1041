#pragma once
// Text: a sample is `context` bytes, or pieces of words, its targets are those one later.

#include <memory>
#include <string>
#include <vector>

#include "cohort/data/source/byte_buffer.h"
#include "cohort/data/source/source.h"
#include "cohort/data/vocabulary/vocabulary.h"

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

/// The same of pieces.
class PieceSource : public DataSource {
 public:
  PieceSource(std::shared_ptr<const std::vector<Token>> text, std::shared_ptr<const Vocabulary> vocabulary, int64_t begin, int64_t end,
              int64_t context);

  const DataShape& shape() const override { return shape_; }
  int64_t num_samples() const override { return num_samples_; }
  void read(std::span<const int64_t> indices, Batch& batch) const override;
  DataDescription describe() const override;

 private:
  std::shared_ptr<const std::vector<Token>> text_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  int64_t begin_, num_samples_;
  DataShape shape_;
};

/// Of "PATH" and "PATH,vocabulary=FILE".
struct TextSpecification {
  std::string path;
  std::string vocabulary;  ///< "": bytes.
};
TextSpecification parse_text_specification(const std::string& argument);

/// The files that make up the text of `path`: itself, or all regular files under it by path. Each file counts once, under its own name if
/// that is in the folder: a symbolic link to a file that is there too is skipped, so is a second hard link; a link to a folder is not
/// followed. What cannot be read, such as a link to nothing: Error(kBadInput).
std::vector<std::string> text_files(const std::string& path);

/// Of all `paths`, one after the other. `what` is named in errors.
ByteBuffer read_text(const std::string& what, const std::vector<std::string>& paths);

/// Opens the text of the files of `argument`'s path, one after the other, as bytes or as pieces; the last are for validation. No byte and
/// no piece belongs to both parts.
DataSet open_text(const std::string& argument, const DataOptions& options);

}  // namespace cohort
