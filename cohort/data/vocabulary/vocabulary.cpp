#include "cohort/data/vocabulary/vocabulary.h"

#include <algorithm>
#include <optional>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

// The number of pieces in between reveals truncated files.
const std::string kFirstWords = "cohort vocabulary 1: ", kLastWord = " pieces";
constexpr size_t kMostFileBytes = size_t{1} << 20;
constexpr size_t kMostKnownWords = 1 << 20;

enum class Kind { kSpace, kLetter, kDigit, kMark };

Kind kind_of(char byte) {
  const auto value = static_cast<unsigned char>(byte);
  if (value == ' ' || (value >= '\t' && value <= '\r')) return Kind::kSpace;
  if (value >= '0' && value <= '9') return Kind::kDigit;
  const auto lower = static_cast<unsigned char>(value | 0x20U);
  return value > 127 || (lower >= 'a' && lower <= 'z') ? Kind::kLetter : Kind::kMark;
}

uint32_t key_of(Vocabulary::Merge merge) { return static_cast<uint32_t>(merge.first) << 16U | merge.second; }

}  // namespace

size_t end_of_word(std::string_view text, size_t begin) {
  const size_t end = std::min(text.size(), begin + kMostWordBytes);
  const auto belongs_to_word = [&](size_t at) { return text[at] == ' ' && at + 1 < text.size() && kind_of(text[at + 1]) != Kind::kSpace; };
  size_t at = begin + (belongs_to_word(begin) ? 1 : 0);
  const Kind kind = kind_of(text[at]);
  while (at < end && kind_of(text[at]) == kind && !(kind == Kind::kSpace && belongs_to_word(at))) ++at;
  return at;
}

Vocabulary::Vocabulary(std::vector<Merge> merges, const std::string& what) : merges_(std::move(merges)) {
  if (size() > kMostTokens) fail(ErrorCode::kBadInput, what, ": ", size(), " pieces; at most ", kMostTokens);
  for (int byte = 0; byte < 256; ++byte) bytes_.emplace_back(1, static_cast<char>(byte));
  for (const Merge& merge : merges_) {
    const size_t token = bytes_.size();
    const auto refuse = [&](const auto&... why) {
      fail(ErrorCode::kBadInput, what, ": piece ", token, " joins ", merge.first, " and ", merge.second, ", ", why...);
    };
    if (merge.first >= token || merge.second >= token) refuse("and only pieces before it can be joined");
    std::string bytes = bytes_[merge.first] + bytes_[merge.second];
    if (bytes.size() > kMostWordBytes) refuse(bytes.size(), " bytes; at most ", kMostWordBytes);
    if (!joined_.emplace(key_of(merge), static_cast<Token>(token)).second) refuse("as piece ", joined_.at(key_of(merge)), " does");
    bytes_.push_back(std::move(bytes));
  }
}

std::string Vocabulary::decode(const std::vector<int64_t>& tokens) const {
  std::string text;
  for (const int64_t token : tokens) text += bytes_.at(static_cast<size_t>(token));
  return text;
}

std::vector<Token> Vocabulary::encode_word(std::string_view word) const {
  std::vector<Token> tokens;
  for (const char byte : word) tokens.push_back(static_cast<unsigned char>(byte));
  while (tokens.size() > 1) {
    // The earliest merge has the smallest token.
    uint32_t first = UINT32_MAX;
    Merge pair;
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      const auto found = joined_.find(key_of({tokens[i], tokens[i + 1]}));
      if (found != joined_.end() && found->second < first) first = found->second, pair = {tokens[i], tokens[i + 1]};
    }
    if (first == UINT32_MAX) break;
    size_t kept = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const bool joins = i + 1 < tokens.size() && tokens[i] == pair.first && tokens[i + 1] == pair.second;
      tokens[kept++] = joins ? static_cast<Token>(first) : tokens[i];
      if (joins) ++i;
    }
    tokens.resize(kept);
  }
  return tokens;
}

void TextEncoder::encode(std::string_view text, std::vector<Token>& out) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = end_of_word(text, begin);
    const std::string word(text.substr(begin, end - begin));
    begin = end;
    if (const auto found = known_.find(word); found != known_.end()) {
      out.insert(out.end(), found->second.begin(), found->second.end());
      continue;
    }
    std::vector<Token> tokens = vocabulary_.encode_word(word);
    out.insert(out.end(), tokens.begin(), tokens.end());
    if (known_.size() < kMostKnownWords) known_.emplace(word, std::move(tokens));
  }
}

Vocabulary read_vocabulary(const std::string& path) {
  std::vector<std::string> lines = split(read_small_file(path, kMostFileBytes), '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  const std::string first = lines.empty() ? "" : lines.front();
  std::optional<int64_t> size;
  if (first.starts_with(kFirstWords) && first.ends_with(kLastWord) && first.size() > kFirstWords.size() + kLastWord.size())
    size = parse_integer(first.substr(kFirstWords.size(), first.size() - kFirstWords.size() - kLastWord.size()));
  if (!size)
    fail(ErrorCode::kBadInput, path, ":1: expected \"", kFirstWords, "N", kLastWord, "\", found ", quote_text(first.substr(0, 60)),
         "; `cohort vocabulary` makes such files");
  std::vector<Vocabulary::Merge> merges;
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::vector<std::string> words = split(lines[i], ' ');
    const auto left = words.size() == 2 ? parse_integer(words[0], 0, kMostTokens - 1) : std::nullopt;
    const auto right = words.size() == 2 ? parse_integer(words[1], 0, kMostTokens - 1) : std::nullopt;
    if (!left || !right)
      fail(ErrorCode::kBadInput, path, ":", i + 1, ": expected two numbers of pieces, found ", quote_text(lines[i].substr(0, 60)));
    merges.emplace_back(static_cast<Token>(*left), static_cast<Token>(*right));
  }
  if (*size != 256 + std::ssize(merges))
    fail(ErrorCode::kBadInput, path, ": its first line says ", *size, " pieces, and the 256 bytes and its other lines are ",
         256 + std::ssize(merges), "; it may have been cut");
  return Vocabulary(std::move(merges), path);
}

std::string vocabulary_text(const Vocabulary& vocabulary) {
  std::string out = concat(kFirstWords, vocabulary.size(), kLastWord, "\n");
  for (const Vocabulary::Merge& merge : vocabulary.merges()) out += concat(merge.first, " ", merge.second, "\n");
  return out;
}

}  // namespace cohort
