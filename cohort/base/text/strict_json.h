#pragma once
// Parses JSON from untrusted files: depth and number of keys are bounded and duplicate keys are refused while parsing.

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
/// Keys in the order of the file; at most 10 000 in one object, because look-ups are linear.
Json parse_strict_ordered_json(std::string_view text, const StrictJsonLimits& limits);

/// A string of a file for error messages: quoted, control characters and bytes above 126 as \xNN, cut after 100 characters.
COHORT_PROGRAM_API std::string quote_text(std::string_view text);

}  // namespace cohort
