#include "cohort/data/vocabulary/vocabulary.h"

#include <doctest/doctest.h>

#include <map>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/random.h"
#include "cohort/data/text_source.h"
#include "cohort/data/vocabulary/learn_vocabulary.h"
#include "tests/support/data_files.h"
#include "tests/support/text.h"

namespace cohort {
namespace {

using testing::error_of;

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  for (size_t at = 0; at < text.size(); at = end_of_word(text, at)) words.push_back(text.substr(at, end_of_word(text, at) - at));
  return words;
}

std::vector<Token> encoded(const Vocabulary& vocabulary, const std::string& text) {
  std::vector<Token> out;
  TextEncoder(vocabulary).encode(text, out);
  return out;
}

Vocabulary learnt(const std::string& text, int64_t size) {
  VocabularyLearner learner;
  learner.read(text);
  return learner.learn(size);
}

/// The same by counting all pairs of all words anew for each merge.
std::vector<Vocabulary::Merge> learnt_plainly(const std::string& text, int64_t size) {
  std::vector<std::vector<Token>> words;
  for (const std::string& word : words_of(text)) {
    words.emplace_back();
    for (const char byte : word) words.back().push_back(static_cast<unsigned char>(byte));
  }
  std::vector<Vocabulary::Merge> merges;
  while (256 + std::ssize(merges) < size) {
    std::map<Vocabulary::Merge, int64_t> counts;
    for (const auto& word : words)
      for (size_t i = 0; i + 1 < word.size(); ++i) ++counts[{word[i], word[i + 1]}];
    Vocabulary::Merge best;
    int64_t most = 1;
    for (const auto& [pair, count] : counts)
      if (count > most) most = count, best = pair;
    if (most == 1) break;
    for (auto& word : words) {
      std::vector<Token> joined;
      for (size_t i = 0; i < word.size(); ++i) {
        const bool joins = i + 1 < word.size() && word[i] == best.first && word[i + 1] == best.second;
        joined.push_back(joins ? static_cast<Token>(256 + merges.size()) : word[i]);
        if (joins) ++i;
      }
      word = joined;
    }
    merges.push_back(best);
  }
  return merges;
}

std::string some_text(uint64_t seed, int64_t bytes) {
  static const char kLetters[] = "aab eno t.\n12  ";
  std::string text;
  for (int64_t i = 0; i < bytes; ++i) text += kLetters[random_bits(seed, static_cast<uint64_t>(i)) % (sizeof kLetters - 1)];
  return text;
}

TEST_CASE("vocabulary: where words end") {
  CHECK(words_of("The cat, 42 times.") == std::vector<std::string>{"The", " cat", ",", " 42", " times", "."});
  CHECK(words_of("a  b\n\n c\t d ") == std::vector<std::string>{"a", " ", " b", "\n\n", " c", "\t", " d", " "});
  CHECK(words_of("na\xc3\xafve 3x") == std::vector<std::string>{"na\xc3\xafve", " 3", "x"});
  CHECK(words_of(std::string(150, 'x')) == std::vector<std::string>{std::string(64, 'x'), std::string(64, 'x'), std::string(22, 'x')});
  CHECK(words_of(" ") == std::vector<std::string>{" "});
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::string all;
    for (const std::string& word : words_of(some_text(seed, 400))) all += word;
    CHECK(all == some_text(seed, 400));
  }
}

TEST_CASE("vocabulary: merges are those that counting anew finds, and every text comes back") {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    const std::string text = some_text(seed, 3000);
    const Vocabulary vocabulary = learnt(text, 256 + 60);
    CHECK(vocabulary.merges() == learnt_plainly(text, 256 + 60));
    for (const std::string& any : {text, some_text(99, 500), std::string("\0\xff \x80 z", 6)}) {
      const std::vector<Token> pieces = encoded(vocabulary, any);
      CHECK(vocabulary.decode({pieces.begin(), pieces.end()}) == any);
    }
    CHECK(3 * encoded(vocabulary, text).size() < 2 * text.size());
  }
  CHECK(learnt("abc", 1000).size() == 256);  // Nothing is met twice.
  CHECK(learnt("aaaa aaaa", 300).merges().front() == Vocabulary::Merge('a', 'a'));
}

TEST_CASE("vocabulary: the earliest merge goes first, from the left") {
  const Vocabulary vocabulary({{'a', 'b'}, {'b', 'c'}, {256, 'c'}, {'a', 'a'}});
  CHECK(encoded(vocabulary, "abc") == std::vector<Token>{258});
  CHECK(encoded(vocabulary, "bcab") == std::vector<Token>{257, 256});
  CHECK(encoded(vocabulary, "aaa") == std::vector<Token>{259, 'a'});
  CHECK(encoded(vocabulary, "aaab") == std::vector<Token>{259, 256});
  CHECK(vocabulary.bytes_of(258) == "abc");
}

TEST_CASE("vocabulary: files come back, and what is none is refused with its place") {
  const TemporaryFolder folder;
  const Vocabulary vocabulary = learnt(some_text(1, 2000), 300);
  const std::string path = folder / "v";
  write_file_atomically(path, vocabulary_text(vocabulary));
  CHECK(read_vocabulary(path).merges() == vocabulary.merges());
  const auto refusal = [&](const std::string& content) {
    write_file_atomically(path, content);
    return error_of([&] { read_vocabulary(path); });
  };
  CHECK(mentions(refusal(""), ":1: expected \"cohort vocabulary 1: N pieces\""));
  CHECK(mentions(refusal("the text\n"), "found \"the text\""));
  CHECK(mentions(refusal("cohort vocabulary 1: 258 pieces\n97 98\n97\n"), ":3: expected two numbers"));
  CHECK(mentions(refusal("cohort vocabulary 1: 257 pieces\n97 98 99\n"), ":2: expected two numbers"));
  CHECK(mentions(refusal("cohort vocabulary 1: 257 pieces\n97 -1\n"), ":2: expected two numbers"));
  CHECK(mentions(refusal("cohort vocabulary 1: 257 pieces\n97 256\n"), "piece 256 joins 97 and 256, and only pieces before it"));
  CHECK(mentions(refusal("cohort vocabulary 1: 258 pieces\n97 98\n97 98\n"), "as piece 256 does"));
  CHECK(mentions(refusal("cohort vocabulary 1: 300 pieces\n97 98\n"), "says 300 pieces, and the 256 bytes and its other lines are 257"));
  CHECK(mentions(refusal("cohort vocabulary 1: pieces\n"), ":1: expected"));
  std::string doubled = "cohort vocabulary 1: 263 pieces\n97 97\n";
  for (int token = 256; token < 262; ++token) doubled += std::to_string(token) + " " + std::to_string(token) + "\n";
  CHECK(mentions(refusal(doubled), "128 bytes; at most 64"));
  CHECK(mentions(error_of([&] { learnt("ab ab", 256); }), "expected 257 to 65536"));
}

TEST_CASE("vocabulary: a text in pieces is divided as a text in bytes is") {
  const TemporaryFolder folder;
  const std::string text = some_text(3, 4000);
  write_file_atomically(folder / "text", text);
  const Vocabulary vocabulary = learnt(text, 290);
  write_file_atomically(folder / "v", vocabulary_text(vocabulary));
  const std::string argument = (folder / "text") + ",vocabulary=" + (folder / "v");
  CHECK(
      mentions(error_of([&] { open_text((folder / "text") + ",vocabulary=" + (folder / "moved"), {}); }),
               "no vocabulary " + (folder / "moved") + "; where it was moved, --data text:" + (folder / "text") + ",vocabulary=FILE says"));
  const DataSet data = open_text(argument, {.context = 8});
  const std::vector<Token> pieces = encoded(vocabulary, text);
  CHECK(data.train->shape().vocabulary() == 290);
  CHECK(data.train->num_samples() + data.validation->num_samples() == (std::ssize(pieces) - 2) / 8);
  CHECK(data.train->describe().vocabulary->merges() == vocabulary.merges());
  Batch batch;
  const std::vector<int64_t> indices = {0, 5};
  data.train->read(indices, batch);
  for (int64_t i = 0; i < 8; ++i) {
    CHECK(batch.tokens[static_cast<size_t>(8 + i)] == pieces[static_cast<size_t>(40 + i)]);
    CHECK(batch.targets[static_cast<size_t>(8 + i)] == pieces[static_cast<size_t>(41 + i)]);
  }
  const std::vector<int64_t> last = {data.validation->num_samples() - 1};
  data.validation->read(last, batch);
  CHECK(batch.targets.back() == pieces.back());
  CHECK(mentions(error_of([&] { open_text((folder / "text") + ",vocabulary=", {}); }), "expected text:FILE-OR-DIR,vocabulary=FILE"));
  CHECK(mentions(error_of([&] { open_text(argument, {.context = 100000}); }), "pieces of text: expected at least"));
}

}  // namespace
}  // namespace cohort
