#pragma once
// What verbs print with --json.

#include <cstdio>

#include "cohort/base/text/json.h"

namespace cohort {

/// Prints one line of JSON. Bytes that are not UTF-8, as names in files may have, are replaced.
inline void print_line(const Json& line) { std::printf("%s\n", line.dump(-1, ' ', false, Json::error_handler_t::replace).c_str()); }

}  // namespace cohort
