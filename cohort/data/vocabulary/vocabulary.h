#pragma once
// Text as pieces of words: byte-pair encoding (Sennrich, Haddow and Birch 2016, "Neural machine translation of rare words with subword
// units", section 3.2) on bytes, so that every text has pieces and every row of pieces is a text. Tokens 0 to 255 are the bytes; token
// 256 + k is what merge k joins. Where we differ from the paper: a space belongs to the word behind it, so there is no mark of a word's
// end. Torch-free.
//   1. The text is cut into words (end_of_word). Pieces do not cross them.
//   2. A word begins as its bytes; of all neighbours that a merge joins, those of the earliest merge are joined, from the left, until none
//      is left.
// Cost: a word that was met before is looked up; a new one of n bytes takes n^2 / 2 look-ups at most, n being 64 at most.

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

/// Where the word of `text` that begins at `begin` ends. A word is a run of letters (all bytes above 127 count as such), of digits or of
/// other marks, with the one space before it; or a run of white space, without a last space that belongs to a word. At most
/// kMostWordBytes. begin < text.size().
COHORT_API size_t end_of_word(std::string_view text, size_t begin);

/// Immutable: any number of threads.
class COHORT_API Vocabulary {
 public:
  using Merge = std::pair<Token, Token>;
  /// Error(kBadInput) where a merge joins a token that does not come before it, what an earlier one joins, or more than kMostWordBytes;
  /// and for more than kMostTokens tokens. `what` is named in errors.
  explicit Vocabulary(std::vector<Merge> merges, const std::string& what = "a vocabulary");

  int64_t size() const { return 256 + static_cast<int64_t>(merges_.size()); }
  const std::vector<Merge>& merges() const { return merges_; }
  const std::string& bytes_of(Token token) const { return bytes_[token]; }  ///< token < size().
  std::string decode(const std::vector<int64_t>& tokens) const;             ///< Each from 0 to below size().
  std::vector<Token> encode_word(std::string_view word) const;

 private:
  std::vector<Merge> merges_;
  std::vector<std::string> bytes_;
  std::unordered_map<uint32_t, Token> joined_;  // By the pair that it joins.
};

/// Keeps the pieces of words that it has met. One thread; the vocabulary must outlive it.
class COHORT_API TextEncoder {
 public:
  explicit TextEncoder(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {}
  void encode(std::string_view text, std::vector<Token>& out);  ///< Appends.

 private:
  const Vocabulary& vocabulary_;
  std::unordered_map<std::string, std::vector<Token>> known_;
};

/// docs/formats/vocabulary.md. Error(kBadInput) with file, line, what was expected and found.
COHORT_API Vocabulary read_vocabulary(const std::string& path);
/// What read_vocabulary reads back.
COHORT_API std::string vocabulary_text(const Vocabulary& vocabulary);

}  // namespace cohort
