#include "cohort/data/vocabulary/learn_vocabulary.h"

#include <optional>
#include <queue>
#include <set>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

using Merge = Vocabulary::Merge;

class Merging {
 public:
  explicit Merging(const std::unordered_map<std::string, int64_t>& counts) {
    for (const auto& [text, count] : counts) {
      Word word{.count = count};
      for (const char byte : text) word.tokens.push_back(static_cast<unsigned char>(byte));
      words_.push_back(std::move(word));
      count_pairs(words_.size() - 1, count, nullptr);
    }
    for (const auto& [pair, found] : pairs_) heap_.push({found.count, pair});
  }

  /// The most frequent pair; nullopt if none occurs twice.
  std::optional<Merge> best() {
    while (!heap_.empty()) {
      const Candidate top = heap_.top();
      heap_.pop();
      const auto found = pairs_.find(top.pair);
      if (found == pairs_.end() || found->second.count != top.count) continue;  // An outdated entry.
      if (top.count < 2) return std::nullopt;
      return top.pair;
    }
    return std::nullopt;
  }

  void join(Merge pair, Token token) {
    const std::vector<size_t> words = std::move(pairs_.at(pair).words);
    pairs_.at(pair).words.clear();
    std::set<Merge> changed;
    for (const size_t index : words) {
      Word& word = words_[index];
      if (!has(word, pair)) continue;  // Merged meanwhile, or listed twice.
      count_pairs(index, -word.count, &changed);
      size_t kept = 0;
      for (size_t i = 0; i < word.tokens.size(); ++i) {
        const bool joins = i + 1 < word.tokens.size() && Merge(word.tokens[i], word.tokens[i + 1]) == pair;
        word.tokens[kept++] = joins ? token : word.tokens[i];
        if (joins) ++i;
      }
      word.tokens.resize(kept);
      count_pairs(index, word.count, &changed);
    }
    for (const Merge& one : changed) {
      const auto found = pairs_.find(one);
      if (found->second.count > 0) heap_.push({found->second.count, one});
      else pairs_.erase(found);
    }
  }

 private:
  struct Word {
    std::vector<Token> tokens = {};
    int64_t count = 0;
  };
  struct Found {
    int64_t count = 0;
    std::vector<size_t> words = {};
  };
  struct Candidate {
    int64_t count;
    Merge pair;
    bool operator<(const Candidate& other) const { return count != other.count ? count < other.count : pair > other.pair; }
  };
  struct Hash {
    size_t operator()(const Merge& pair) const {
      return std::hash<uint64_t>()((static_cast<uint64_t>(pair.first) << 16U | pair.second) * UINT64_C(0x9e3779b97f4a7c15));
    }
  };

  static bool has(const Word& word, Merge pair) {
    for (size_t i = 0; i + 1 < word.tokens.size(); ++i)
      if (Merge(word.tokens[i], word.tokens[i + 1]) == pair) return true;
    return false;
  }

  void count_pairs(size_t index, int64_t count, std::set<Merge>* changed) {
    const std::vector<Token>& tokens = words_[index].tokens;
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      const Merge pair(tokens[i], tokens[i + 1]);
      Found& found = pairs_[pair];
      found.count += count;
      if (count > 0 && (found.words.empty() || found.words.back() != index)) found.words.push_back(index);
      if (changed) changed->insert(pair);
    }
  }

  std::vector<Word> words_;
  std::unordered_map<Merge, Found, Hash> pairs_;
  std::priority_queue<Candidate> heap_;
};

}  // namespace

void VocabularyLearner::read(std::string_view text) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = end_of_word(text, begin);
    ++counts_[std::string(text.substr(begin, end - begin))];
    begin = end;
  }
}

Vocabulary VocabularyLearner::learn(int64_t size) const {
  if (size < 257 || size > kMostTokens)
    fail(ErrorCode::kBadInput, "--size ", size, ": expected 257 to ", kMostTokens, " pieces, of which 256 are the bytes");
  Merging merging(counts_);
  std::vector<Merge> merges;
  while (256 + std::ssize(merges) < size) {
    const std::optional<Merge> pair = merging.best();
    if (!pair) break;
    merging.join(*pair, static_cast<Token>(256 + merges.size()));
    merges.push_back(*pair);
  }
  return Vocabulary(std::move(merges));
}

}  // namespace cohort
