#pragma once
// Learns the merges of a vocabulary from a text: the two neighbours that are met most often become a piece, again and again (Sennrich et
// al. 2016, algorithm 1).
//   1. Words of the text are counted; each distinct one is a row of tokens, its bytes.
//   2. The pair with the largest count, over words times how often they occur, is a new token (of equal counts the one with the smaller
//      tokens), and is replaced in the words that have it.
//   3. Counts of the pairs of those words change; the largest is found by a heap whose old entries are passed over.
// Cost: memory for the distinct words; time for reading the text once, and for the pairs of the words that a merge changes. The result is a
// function of the text alone. Torch-free.

#include <cstdint>
#include <string>
#include <string_view>

#include "cohort/data/vocabulary/vocabulary.h"

namespace cohort {

/// One thread.
class VocabularyLearner {
 public:
  /// Counts the words of `text`, which ends a word; called any number of times.
  void read(std::string_view text);
  int64_t num_words() const { return std::ssize(counts_); }  ///< Distinct ones.
  /// Of `size` tokens, or fewer where no two neighbours are met twice any more. Error(kBadInput) for a size that is not from 257 to
  /// kMostTokens.
  Vocabulary learn(int64_t size) const;

 private:
  std::unordered_map<std::string, int64_t> counts_;
};

}  // namespace cohort
