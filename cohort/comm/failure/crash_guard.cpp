#include "cohort/comm/failure/crash_guard.h"

#include <unistd.h>

#include <cstring>

namespace cohort {
namespace {

const char* line_to_print = nullptr;

void print_and_exit(int) {
  // Only async-signal-safe calls.
  const char* const parts[] = {"cohort: error: ", line_to_print, "\n"};
  for (const char* part : parts)
    if (::write(STDERR_FILENO, part, std::strlen(part)) < 0) break;
  ::_exit(4);
}

}  // namespace

CrashGuard::CrashGuard(const char* line) {
  line_to_print = line;
  struct sigaction action{};
  action.sa_handler = print_and_exit;
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < before_.size(); ++i) ::sigaction(kSignals[i], &action, &before_[i]);
}

CrashGuard::~CrashGuard() {
  for (size_t i = 0; i < before_.size(); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
}

}  // namespace cohort
