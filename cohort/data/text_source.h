#pragma once
// Text: a sample is `context` bytes, or tokens of a vocabulary; its targets are shifted by one.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/data/source/byte_buffer.h"
#include "cohort/data/source/source.h"
#include "cohort/data/source/split.h"
#include "cohort/data/vocabulary/vocabulary.h"

namespace cohort {

/// The tokens [begin, end) of a text, bytes or pieces. Sample i of context C: tokens are [i C, i C + C), targets [i C + 1, i C + C + 1), so
/// there are floor((end - begin - 1) / C) samples.
template <typename Text>
class TokenSource : public DataSource {
 public:
  /// `vocabulary`: that of the pieces, null for bytes.
  TokenSource(std::shared_ptr<const Text> text, int64_t begin, int64_t end, int64_t context,
              std::shared_ptr<const Vocabulary> vocabulary = nullptr)
      : text_(std::move(text)),
        vocabulary_(std::move(vocabulary)),
        begin_(begin),
        num_samples_((end - begin - 1) / context),
        shape_{DataShape::Kind::kText, {context}, vocabulary_ ? vocabulary_->size() : 256, {}} {}

  const DataShape& shape() const override { return shape_; }
  int64_t num_samples() const override { return num_samples_; }
  DataDescription describe() const override {
    DataDescription description = DataSource::describe();
    description.vocabulary = vocabulary_;
    return description;
  }
  void read(std::span<const int64_t> indices, Batch& batch) const override {
    resize_batch(batch, shape_, std::ssize(indices));
    const int64_t context = shape_.input[0];
    for (size_t i = 0; i < indices.size(); ++i) {
      check_index(indices[i], num_samples_);
      const auto* const in = text_->data() + begin_ + indices[i] * context;
      const int64_t at = static_cast<int64_t>(i) * context;
      std::copy_n(in, context, batch.tokens.data() + at);
      std::copy_n(in + 1, context, batch.targets.data() + at);
    }
  }

 private:
  std::shared_ptr<const Text> text_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  int64_t begin_, num_samples_;
  DataShape shape_;
};
using TextSource = TokenSource<ByteBuffer>;
using PieceSource = TokenSource<std::vector<Token>>;

/// "PATH" or "PATH,vocabulary=FILE".
struct TextSpecification {
  std::string path;
  std::string vocabulary;  ///< "": bytes.
};
TextSpecification parse_text_specification(const std::string& argument);

/// The files of `path`: itself, or all regular files below it, sorted. Each file counts once: symbolic links to listed files and further
/// hard links are skipped, links to folders are not followed. Error(kBadInput) for unreadable files and dangling links.
std::vector<std::string> text_files(const std::string& path);

/// The bytes of all `paths`, one after the other. `what` is named in errors.
ByteBuffer read_text(const std::string& what, const std::vector<std::string>& paths);

/// Opens the concatenated files of `argument`'s path as bytes or tokens; the last ones are for validation. No token belongs to both parts.
DataSet open_text(const std::string& argument, const DataOptions& options);

}  // namespace cohort
