#pragma once
// For tests: what an action that fails says.

#include <doctest/doctest.h>

#include <functional>
#include <string>

#include "cohort/base/fail.h"

namespace cohort {

/// The text, one line, of the Error(code) that `action` throws; "" where it throws none.
inline std::string error_or_none(const std::function<void()>& action, ErrorCode code = ErrorCode::kBadInput) {
  try {
    action();
  } catch (const Error& error) {
    CHECK(error.code() == code);
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
    return error.what();
  }
  return "";
}

/// The same of an action that must fail.
inline std::string error_of(const std::function<void()>& action, ErrorCode code = ErrorCode::kBadInput) {
  const std::string text = error_or_none(action, code);
  if (text.empty()) FAIL_CHECK("expected an Error");
  return text;
}

}  // namespace cohort
