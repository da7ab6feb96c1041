#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/files/writable_place.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/options/output.h"
#include "cohort/cli/options/verb.h"
#include "cohort/data/text_source.h"
#include "cohort/data/vocabulary/learn_vocabulary.h"

namespace cohort {
namespace {

/// Refuses an output inside the folder of the text: it would be read as text from then on.
void check_outside(const std::string& out, const std::string& text) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (!fs::is_directory(text, ignored)) return;
  const fs::path folder = fs::canonical(text, ignored), file = fs::weakly_canonical(out, ignored);
  if (std::mismatch(folder.begin(), folder.end(), file.begin(), file.end()).first == folder.end())
    fail(ErrorCode::kBadInput, "--out ", out, " lies in ", text,
         ", the folder of the text, and would become a part of it; give a path outside");
}

/// Writes the file, and prints how the text is encoded with it.
int run_vocabulary(const Arguments& arguments) {
  const std::string out = arguments.option("out", "");
  if (arguments.positional.size() != 1) fail(ErrorCode::kBadInput, "vocabulary takes one text: cohort vocabulary FILE-OR-DIR --out FILE");
  if (out.empty()) fail(ErrorCode::kBadInput, "vocabulary: --out FILE is missing, the vocabulary to write");
  const int64_t size = arguments.integer_option("size", 8192, 257, kMostTokens);
  check_writable_file(out);
  check_holds_kind(out, "cohort vocabulary", 0, "a vocabulary");
  const std::string& path = arguments.positional.front();
  const std::vector<std::string> files = text_files(path);
  for (const std::string& file : files) check_distinct_files({{"--out", out}}, {{"the text", file}});
  check_outside(out, path);
  const ByteBuffer text = read_text(path, files);
  if (text.size() == 0) fail(ErrorCode::kBadInput, path, " holds no text, so there is nothing to learn");
  const std::string_view bytes(reinterpret_cast<const char*>(text.data()), static_cast<size_t>(text.size()));
  VocabularyLearner learner;
  learner.read(bytes);
  const Vocabulary vocabulary = learner.learn(size);
  if (vocabulary.merges().empty())
    fail(ErrorCode::kBadInput, path, " has ", text.size(), text.size() == 1 ? " byte" : " bytes",
         " of text, in whose words no two neighbours are met twice, so there is nothing to learn; give more text");
  std::vector<Token> pieces;
  TextEncoder(vocabulary).encode(bytes, pieces);
  write_file_atomically(out, vocabulary_text(vocabulary));
  const double bytes_a_piece = static_cast<double>(text.size()) / static_cast<double>(std::max<size_t>(1, pieces.size()));
  if (arguments.config.json) {
    print_line(Json{{"event", "vocabulary"},
                    {"path", out},
                    {"size", vocabulary.size()},
                    {"bytes", text.size()},
                    {"words", learner.num_words()},
                    {"pieces", pieces.size()},
                    {"bytes_a_piece", bytes_a_piece}});
    return 0;
  }
  std::printf("%s: %s pieces from %s of text with %s different words, which is %s pieces, %.2f bytes each\n", out.c_str(),
              with_commas(vocabulary.size()).c_str(), human_bytes(text.size()).c_str(), with_commas(learner.num_words()).c_str(),
              with_commas(std::ssize(pieces)).c_str(), bytes_a_piece);
  if (vocabulary.size() < size)
    std::printf("fewer than the %s asked for: no two neighbours are met twice any more\n", with_commas(size).c_str());
  return 0;
}

}  // namespace

Verb vocabulary_verb() {
  return {
      .name = "vocabulary",
      .summary = "Learns pieces of words from a text (byte-pair encoding), for --data text:FILE-OR-DIR,vocabulary=FILE.",
      .examples = {"cohort vocabulary /usr/share/common-licenses --size 1000 --out licences.vocabulary",
                   "cohort train --model transformer --data text:/usr/share/common-licenses,vocabulary=licences.vocabulary --steps 100"},
      .positional_help = "a file of text, or a folder of such files",
      .settings = {"json"},
      .most_words = 1,
      .options = {{"size", "N", "pieces, the 256 bytes among them (default 8192)"}, {"out", "FILE", "where they are written"}},
      .run = run_vocabulary};
}

}  // namespace cohort
