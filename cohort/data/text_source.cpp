#include "cohort/data/text_source.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/data/byte_reader.h"
#include "cohort/data/split.h"

namespace cohort {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxContext = 1 << 20;

/// Device and inode: what makes two paths the same file.
using Identity = std::pair<uint64_t, uint64_t>;

Identity identity_of(const fs::path& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0)
    fail(ErrorCode::kBadInput, "cannot read ", path.string(), ": it vanished while its folder was read");
  return {status.st_dev, status.st_ino};
}

/// Sorts what is under `folder` in files and links to files.
void collect(const fs::path& folder, std::vector<fs::path>& files, std::vector<fs::path>& links) {
  std::error_code error;
  fs::recursive_directory_iterator at(folder, error);
  if (error) fail(ErrorCode::kBadInput, "cannot read folder ", folder.string(), ": ", error.message());
  fs::path last = folder;
  while (at != fs::recursive_directory_iterator()) {
    last = at->path();
    const bool is_link = at->is_symlink(error);
    const fs::file_status target = at->status(error);
    if (error) fail(ErrorCode::kBadInput, "cannot read ", last.string(), is_link ? ", a symbolic link: " : ": ", error.message());
    if (fs::is_regular_file(target)) (is_link ? links : files).push_back(last);
    at.increment(error);
    if (error) fail(ErrorCode::kBadInput, "cannot read folder ", last.string(), ": ", error.message());
  }
}

/// All `paths` one after the other. Sizes are taken before anything is read.
ByteBuffer read_all(const std::string& what, const std::vector<std::string>& paths) {
  int64_t total = 0;
  std::vector<int64_t> sizes;
  for (const std::string& path : paths) {
    sizes.push_back(InputFile(path).num_bytes());
    if (sizes.back() > kMaxDataBytes - total)
      fail(ErrorCode::kBadInput, what, " has more text than the limit of ", kMaxDataBytes, " bytes");
    total += sizes.back();
  }
  ByteBuffer text(total, what);
  int64_t at = 0;
  for (size_t i = 0; i < paths.size(); ++i) {
    InputFile(paths[i]).read_exactly(text.data() + at, sizes[i]);
    at += sizes[i];
  }
  return text;
}

}  // namespace

TextSource::TextSource(std::shared_ptr<const ByteBuffer> text, int64_t begin, int64_t end, int64_t context)
    : text_(std::move(text)),
      begin_(begin),
      num_samples_((end - begin - 1) / context),
      shape_{DataShape::Kind::kText, {context}, 256, {}} {}

void TextSource::read(std::span<const int64_t> indices, Batch& batch) const {
  const int64_t context = shape_.input[0];
  resize_batch(batch, shape_, static_cast<int64_t>(indices.size()));
  for (size_t i = 0; i < indices.size(); ++i) {
    check_index(indices[i], num_samples_);
    const uint8_t* in = text_->data() + begin_ + indices[i] * context;
    const int64_t at = static_cast<int64_t>(i) * context;
    std::copy_n(in, context, batch.tokens.data() + at);
    std::copy_n(in + 1, context, batch.targets.data() + at);
  }
}

std::vector<std::string> text_files(const std::string& path) {
  std::error_code error;
  if (!fs::exists(path, error)) fail(ErrorCode::kBadInput, "no file or folder ", path);
  if (!fs::is_directory(path, error)) return {path};
  std::vector<fs::path> files, links;
  collect(path, files, links);
  // Files claim their content before links do, so that GPL -> GPL-3 leaves GPL-3 in the list.
  std::set<Identity> taken;
  std::vector<fs::path> kept;
  for (std::vector<fs::path>* group : {&files, &links}) {
    std::ranges::sort(*group);
    for (const fs::path& file : *group) {
      if (taken.insert(identity_of(file)).second) kept.push_back(file);
    }
  }
  if (kept.empty()) fail(ErrorCode::kBadInput, path, " has no files: expected at least one file of text");
  std::ranges::sort(kept);
  std::vector<std::string> names;
  for (const fs::path& file : kept) names.push_back(file.string());
  return names;
}

DataSet open_text(const std::string& path, const DataOptions& options) {
  const int64_t context = options.context;
  if (context < 1 || context > kMaxContext) fail(ErrorCode::kBadInput, "context: expected 1 to ", kMaxContext, " bytes, found ", context);
  const auto text = std::make_shared<const ByteBuffer>(read_all(path, text_files(path)));
  // Each part needs one byte more than its samples: the last target.
  const int64_t needed = 2 * (context + 1);
  if (text->size() < needed) {
    fail(ErrorCode::kBadInput, path, " has ", text->size(), " bytes of text: expected at least ", needed, " (a sample of ", context,
         " bytes and its last target, both to train on and for validation)");
  }
  const int64_t num_validation = num_validation_samples(path, (text->size() - 2) / context, options);
  const int64_t cut = text->size() - (num_validation * context + 1);
  DataSet data;
  data.train = std::make_shared<TextSource>(text, 0, cut, context);
  data.validation = std::make_shared<TextSource>(text, cut, text->size(), context);
  return data;
}

}  // namespace cohort
