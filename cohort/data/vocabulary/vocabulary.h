#pragma once
// Byte-pair encoding (Sennrich, Haddow and Birch 2016, "Neural machine translation of rare words with subword units", section 3.2) on
// bytes. Tokens 0 to 255 are the bytes; token 256 + k is the result of merge k. Where we differ from the paper: a space belongs to the
// following word, so there is no end-of-word mark. Torch-free.
//   1. Split the text into words (end_of_word); tokens do not cross them.
//   2. A word begins as its bytes; repeatedly apply the earliest applicable merge, from the left.
// Cost: known words are looked up; a new word of n <= 64 bytes takes at most n^2 / 2 look-ups.

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cohort/base/export.h"

namespace cohort {

using Token = uint16_t;

constexpr int64_t kMostTokens = 65'536;
constexpr size_t kMostWordBytes = 64;

/// End of the word of `text` that begins at `begin`. A word is a run of letters (including bytes above 127), digits or other marks with the
/// space before it; or a run of white space, without the space before a word. At most kMostWordBytes. begin < text.size().
COHORT_API size_t end_of_word(std::string_view text, size_t begin);

/// Immutable and thread-safe.
class COHORT_API Vocabulary {
 public:
  using Merge = std::pair<Token, Token>;
  /// Error(kBadInput), which names `what`, where a merge uses a later token, repeats an earlier merge, or exceeds kMostWordBytes; and for
  /// more than kMostTokens tokens.
  explicit Vocabulary(std::vector<Merge> merges, const std::string& what = "a vocabulary");

  int64_t size() const { return 256 + static_cast<int64_t>(merges_.size()); }
  const std::vector<Merge>& merges() const { return merges_; }
  const std::string& bytes_of(Token token) const { return bytes_[token]; }  ///< token < size().
  std::string decode(const std::vector<int64_t>& tokens) const;             ///< Each from 0 to below size().
  std::vector<Token> encode_word(std::string_view word) const;

 private:
  std::vector<Merge> merges_;
  std::vector<std::string> bytes_;
  std::unordered_map<uint32_t, Token> joined_;  // By pair.
};

/// Caches the tokens of words. One thread; the vocabulary must outlive it.
class COHORT_API TextEncoder {
 public:
  explicit TextEncoder(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {}
  void encode(std::string_view text, std::vector<Token>& out);  ///< Appends.

 private:
  const Vocabulary& vocabulary_;
  std::unordered_map<std::string, std::vector<Token>> known_;
};

/// Format: docs/formats/vocabulary.md. Error(kBadInput) with file, line, what was expected and found.
COHORT_API Vocabulary read_vocabulary(const std::string& path);
/// The content of a file for read_vocabulary().
COHORT_API std::string vocabulary_text(const Vocabulary& vocabulary);

}  // namespace cohort
