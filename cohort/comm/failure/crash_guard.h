#pragma once
// Turns a crash inside foreign code into one line.

#include <signal.h>

#include <array>

namespace cohort {

/// While it lives, SIGSEGV, SIGBUS, SIGILL, SIGFPE and SIGABRT of this process write `line` (which must outlive it) to stderr and end the
/// process with exit code 4. Not for several threads at once, not nestable; the handlers before it are restored.
class CrashGuard {
 public:
  explicit CrashGuard(const char* line);
  ~CrashGuard();
  CrashGuard(const CrashGuard&) = delete;

 private:
  static constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
  std::array<struct sigaction, std::size(kSignals)> before_{};
};

}  // namespace cohort
