#pragma once
// The exception type of Cohort, and the exit code of each kind of failure.

#include <stdexcept>
#include <string>

#include "cohort/base/export.h"

namespace cohort {

/// What went wrong; the values are the exit codes of the program.
enum class ErrorCode {
  kFailed = 1,         ///< Training or a check failed: a non-finite loss, a verify that finds a difference.
  kBadInput = 2,       ///< Wrong usage, or an invalid file.
  kInfeasible = 3,     ///< No plan fits.
  kEnvironment = 4,    ///< Launcher, port, time-out, or a lost peer.
  kNotProven = 5,      ///< A verify without a conclusive result.
  kInterrupted = 130,  ///< Stopped by the user.
};

/// The text is one line: what failed with its values, on which rank or in which file, and what to do.
class COHORT_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& text) : std::runtime_error(text), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace cohort
