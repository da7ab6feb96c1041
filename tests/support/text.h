#pragma once
// For tests: what a text says.

#include <doctest/doctest.h>

#include <string>

namespace cohort {

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// contains(), and shows the text where the part is missing: for texts that are short enough to be read. Not for thread ranks.
inline bool mentions(const std::string& text, const std::string& part) {
  const bool found = contains(text, part);
  if (!found) MESSAGE("'" << text << "' has no '" << part << "'");
  return found;
}

/// How often `part`, which is not empty, stands in `text`, without overlaps.
inline size_t count(const std::string& text, const std::string& part) {
  size_t number = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++number;
  return number;
}

}  // namespace cohort
