#pragma once
// Where to cut a text that is too long for its place.

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace cohort {

/// How much of `text`, at most `most` bytes, to keep before "...": up to the end of a word where one ends in the second half, else as much
/// as fits; never a part of a UTF-8 character.
inline size_t length_of_whole_words(std::string_view text, size_t most) {
  constexpr std::string_view kBetweenWords = " \t\n,;:()[]./";
  if (text.size() <= most) return text.size();
  size_t end = std::min(most, text.find_last_of(kBetweenWords, most));
  if (end >= most / 2) end = text.find_last_not_of(kBetweenWords, end) + 1;
  if (end < most / 2 || end > most) end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return end;
}

}  // namespace cohort
