#pragma once
// What verbs print with --json.

#include <cmath>
#include <cstdint>
#include <cstdio>

#include "cohort/base/text/json.h"

namespace cohort {

/// Prints one line of JSON. Bytes that are not UTF-8, as names in files may have, are replaced. `ascii`: what is not ASCII is escaped, for
/// names from foreign files, which may hold control characters of a terminal.
inline void print_line(const Json& line, bool ascii = false) {
  std::printf("%s\n", line.dump(-1, ' ', ascii, Json::error_handler_t::replace).c_str());
}

/// A whole number without a fraction: 64, not 64.0; null for a number that is not finite.
inline Json number_json(double value) {
  if (!std::isfinite(value)) return nullptr;
  return value == std::floor(value) && std::abs(value) < 1e15 ? Json(static_cast<int64_t>(value)) : Json(value);
}

}  // namespace cohort
