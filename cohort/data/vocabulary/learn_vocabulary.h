#pragma once
// Learns the merges of a vocabulary from a text by repeatedly merging the most frequent pair of neighbours (Sennrich et al. 2016,
// algorithm 1).
//   1. Count the words of the text; each distinct word is a sequence of tokens, initially its bytes.
//   2. The pair with the largest count over all words becomes a new token (ties: the smaller tokens) and is replaced in its words.
//   3. Update the counts of pairs in those words; a heap finds the largest, skipping outdated entries.
// Cost: memory for the distinct words; time for one pass over the text, and for the pairs of changed words per merge. Deterministic.
// Torch-free.

#include <cstdint>
#include <string>
#include <string_view>

#include "cohort/data/vocabulary/vocabulary.h"

namespace cohort {

/// One thread.
class VocabularyLearner {
 public:
  /// Counts the words of `text`; its end is the end of a word. May be called repeatedly.
  void read(std::string_view text);
  int64_t num_words() const { return std::ssize(counts_); }  ///< Distinct words.
  /// A vocabulary of `size` tokens, or fewer where no pair occurs twice. Error(kBadInput) unless size is from 257 to kMostTokens.
  Vocabulary learn(int64_t size) const;

 private:
  std::unordered_map<std::string, int64_t> counts_;
};

}  // namespace cohort
