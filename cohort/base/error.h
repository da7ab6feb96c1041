#pragma once
// The one exception type of Cohort, and the exit code that each kind of failure becomes.

#include <stdexcept>
#include <string>

#include "cohort/base/export.h"

namespace cohort {

/// What went wrong; the values are the exit codes of the program.
enum class ErrorCode {
  kFailed = 1,         ///< Training or a check failed: a non-finite loss, a verify that finds a difference.
  kBadInput = 2,       ///< Wrong usage, or a file that is not what it should be.
  kInfeasible = 3,     ///< No plan fits.
  kEnvironment = 4,    ///< Launcher, port, time-out, or a peer that was lost.
  kNotProven = 5,      ///< A verify that can say neither yes nor no.
  kInterrupted = 130,  ///< Stopped by the user.
};

/// Text says what failed with its values, which rank or file, and what to do; one line.
class COHORT_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& text) : std::runtime_error(text), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace cohort
