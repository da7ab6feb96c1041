#include "cohort/data/text_source.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/files/byte_reader.h"
#include "cohort/base/text/text.h"
#include "cohort/data/source/split.h"

namespace cohort {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxContext = 1 << 20;

/// Device and inode, which identify a file.
using Identity = std::pair<uint64_t, uint64_t>;

Identity identity_of(const fs::path& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0)
    fail(ErrorCode::kBadInput, "cannot read ", path.string(), ": it vanished while its folder was read");
  return {status.st_dev, status.st_ino};
}

/// Collects the files, and links to files, below `folder`.
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

constexpr const char* kVocabularyKey = ",vocabulary=";

/// A hint for a missing path that ends like a setting.
std::string hint_of_setting(const std::string& path) {
  const size_t comma = path.rfind(','), equals = path.find('=', std::min(comma, path.size()));
  if (equals == std::string::npos || equals == comma + 1 || path.find('/', comma) < equals) return "";
  const std::string key = path.substr(comma + 1, equals - comma - 1);
  return concat("; text has no setting '", printable(key), "'", did_you_mean(key, {"vocabulary"}),
                ": expected text:FILE-OR-DIR,vocabulary=FILE");
}

/// Reads the vocabulary file; a resumed run reads it as well.
std::shared_ptr<const Vocabulary> vocabulary_of(const TextSpecification& text) {
  std::error_code error;
  if (!fs::exists(text.vocabulary, error) && !error)
    fail(ErrorCode::kBadInput, "no vocabulary ", text.vocabulary, "; where it was moved, ", name_settings("--data "), "text:", text.path,
         kVocabularyKey, "FILE says where it is");
  return std::make_shared<const Vocabulary>(read_vocabulary(text.vocabulary));
}

/// Where the validation part of `size` tokens begins. Each part needs one token more than its samples, for the last target.
int64_t begin_of_validation(const std::string& path, int64_t size, const char* unit, const DataOptions& options) {
  const int64_t context = options.context, needed = 2 * (context + 1);
  if (size < needed) {
    fail(ErrorCode::kBadInput, path, " has ", size, ' ', unit, " of text: expected at least ", needed, " (a sample of ", context, ' ', unit,
         " and its last target, both to train on and for validation)");
  }
  return size - (num_validation_samples(path, (size - 2) / context, options) * context + 1);
}

}  // namespace

/// Determines all sizes before reading.
ByteBuffer read_text(const std::string& what, const std::vector<std::string>& paths) {
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
    InputFile file(paths[i]);
    file.read_exactly(text.data() + at, sizes[i]);
    // Files below /proc report size 0.
    if (uint8_t more = 0; sizes[i] == 0 && file.read(&more, 1) == 1)
      fail(ErrorCode::kBadInput, paths[i], " says that it has 0 bytes, and has more; make a copy of it and give that");
    at += sizes[i];
  }
  return text;
}

TextSpecification parse_text_specification(const std::string& argument) {
  const size_t at = argument.rfind(kVocabularyKey);
  if (at == std::string::npos) return {argument, ""};
  TextSpecification text{argument.substr(0, at), argument.substr(at + std::string(kVocabularyKey).size())};
  if (text.path.empty() || text.vocabulary.empty())
    fail(ErrorCode::kBadInput, "data 'text:", argument, "': expected text:FILE-OR-DIR,vocabulary=FILE");
  return text;
}

std::vector<std::string> text_files(const std::string& path) {
  std::error_code error;
  if (!fs::exists(path, error)) fail(ErrorCode::kBadInput, "no file or folder ", path);
  if (!fs::is_directory(path, error)) return {path};
  std::vector<fs::path> files, links;
  collect(path, files, links);
  // Files take precedence over links: of GPL -> GPL-3, GPL-3 is listed.
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

DataSet open_text(const std::string& argument, const DataOptions& options) {
  const int64_t context = options.context;
  const TextSpecification asked = parse_text_specification(argument);
  const char* const unit = asked.vocabulary.empty() ? "bytes" : "pieces";
  if (context < 1 || context > kMaxContext)
    fail(ErrorCode::kBadInput, "context: expected 1 to ", kMaxContext, ' ', unit, ", found ", context);
  std::shared_ptr<const Vocabulary> vocabulary;
  if (!asked.vocabulary.empty()) vocabulary = vocabulary_of(asked);
  if (std::error_code error; !fs::exists(asked.path, error))
    fail(ErrorCode::kBadInput, "no file or folder ", asked.path, hint_of_setting(asked.path));
  const auto text = std::make_shared<const ByteBuffer>(read_text(asked.path, text_files(asked.path)));
  DataSet data;
  if (!vocabulary) {
    const int64_t cut = begin_of_validation(asked.path, text->size(), unit, options);
    data.train = std::make_shared<TextSource>(text, 0, cut, context);
    data.validation = std::make_shared<TextSource>(text, cut, text->size(), context);
    return data;
  }
  std::vector<Token> pieces;
  TextEncoder(*vocabulary).encode({reinterpret_cast<const char*>(text->data()), static_cast<size_t>(text->size())}, pieces);
  const auto tokens = std::make_shared<const std::vector<Token>>(std::move(pieces));
  const int64_t size = std::ssize(*tokens), cut = begin_of_validation(asked.path, size, unit, options);
  data.train = std::make_shared<PieceSource>(tokens, 0, cut, context, vocabulary);
  data.validation = std::make_shared<PieceSource>(tokens, cut, size, context, vocabulary);
  return data;
}

}  // namespace cohort
