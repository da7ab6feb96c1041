#pragma once
// For tests of parsers: the same damaged inputs on every run, from the counter-based generator.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "cohort/base/random.h"

namespace cohort {

/// `input` with 1 to 4 damages: a flipped bit, a byte set to a value that parsers dislike, a piece cut out, doubled or overwritten by
/// another.
inline std::string mutated(const std::string& input, uint64_t seed) {
  static constexpr unsigned char kOddBytes[] = {0, 0xff, 0x7f, 0x80, '"', '{', '}', '[', ']', ',', ':', '-', '9', '\\', 'e', '/'};
  std::string text = input;
  const uint64_t damages = 1 + random_bits(seed, 0) % 4;
  for (uint64_t i = 1; i <= damages && !text.empty(); ++i) {
    const size_t at = random_bits(seed, i, 1) % text.size();
    const size_t length = 1 + random_bits(seed, i, 2) % 16;
    const size_t from = random_bits(seed, i, 3) % text.size();
    switch (random_bits(seed, i, 4) % 5) {
      case 0:
        text[at] = static_cast<char>(text[at] ^ (1 << (random_bits(seed, i, 5) % 8)));
        break;
      case 1:
        text[at] = static_cast<char>(kOddBytes[random_bits(seed, i, 5) % sizeof kOddBytes]);
        break;
      case 2:
        text.erase(at, length);
        break;
      case 3:
        text.insert(at, text.substr(from, length));
        break;
      default:
        text.replace(at, length, text.substr(from, length));
        break;
    }
  }
  return text;
}

/// How many damaged inputs to try: `few` in the daily tests; COHORT_MUTATIONS=1000000 asks for as many.
inline uint64_t mutation_count(uint64_t few) {
  const char* const asked = std::getenv("COHORT_MUTATIONS");
  return asked ? std::max<uint64_t>(1, std::strtoull(asked, nullptr, 10)) : few;
}

}  // namespace cohort
