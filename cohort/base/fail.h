#pragma once
// Throws an Error whose text is composed of values.

#include <sstream>
#include <string>

#include "cohort/base/error.h"
#include "cohort/base/setting_name.h"  // Error texts name settings.

namespace cohort {

/// All arguments written one after the other.
template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

/// Throws an Error whose text is all `parts` written one after the other.
template <typename... Parts>
[[noreturn]] void fail(ErrorCode code, const Parts&... parts) {
  throw Error(code, concat(parts...));
}

}  // namespace cohort
