#pragma once
// For tests: what an action that must fail says.

#include <doctest/doctest.h>

#include <functional>
#include <string>

#include "cohort/base/fail.h"

namespace cohort {

/// The text, one line, of the Error(code) that `action` must throw.
inline std::string error_of(const std::function<void()>& action, ErrorCode code = ErrorCode::kBadInput) {
  try {
    action();
  } catch (const Error& error) {
    CHECK(error.code() == code);
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
    return error.what();
  }
  FAIL_CHECK("expected an Error");
  return "";
}

}  // namespace cohort
