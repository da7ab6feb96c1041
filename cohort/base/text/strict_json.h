#pragma once
// JSON from a file that may be damaged or hostile: depth and keys are bounded and a key that comes twice is refused, before the value is
// built.

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "cohort/base/export.h"
#include "cohort/base/text/json_fwd.h"

namespace cohort {

struct StrictJsonLimits {
  std::string path;       ///< Named in errors.
  size_t first_byte = 0;  ///< Where `text` begins in the file; added to the offsets in errors.
  int max_depth = 32;
};

/// Keys sorted, any number of them. Error(kBadInput) naming file, byte and what is wrong.
nlohmann::json parse_strict_json(std::string_view text, const StrictJsonLimits& limits);
/// Keys in the order of the file; at most 10 000 in one object, because each look-up walks them all.
Json parse_strict_ordered_json(std::string_view text, const StrictJsonLimits& limits);

/// As an error shows a string that came from a file: quoted, control characters and bytes above 126 as \xNN, cut after 100 characters.
COHORT_PROGRAM_API std::string quote_text(std::string_view text);

}  // namespace cohort
