#include "cohort/world/process.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace cohort {
namespace {

/// Whether process_state() calls a killed process that held 64 MiB ended before its parent can wait for it.
bool is_seen_early() {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    constexpr size_t kBytes = size_t{64} << 20;
    auto* const memory = static_cast<char*>(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ::madvise(memory, kBytes, MADV_NOHUGEPAGE);
    for (size_t at = 0; at < kBytes; at += 4096) memory[at] = 1;
    ::raise(SIGSTOP);
  }
  int status = 0;
  ::waitpid(pid, &status, WUNTRACED);
  CHECK(process_state(pid) == 'T');
  ::kill(pid, SIGKILL);
  while (process_state(pid) != 'Z') ::usleep(50);
  const bool early = ::waitpid(pid, nullptr, WNOHANG) == 0;
  if (early) ::waitpid(pid, nullptr, 0);
  CHECK(process_state(pid) == 'X');
  return early;
}

}  // namespace

TEST_CASE("a killed process has ended before its memory has been taken down") {
  bool early = false;
  for (int trial = 0; trial < 40 && !early; ++trial) early = is_seen_early();
  CHECK(early);
}

TEST_CASE("a process that runs or sleeps has not ended") {
  const char own = process_state(::getpid());
  CHECK((own == 'R' || own == 'S' || own == 'D'));
}

}  // namespace cohort
