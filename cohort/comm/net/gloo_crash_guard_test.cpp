#include "cohort/comm/net/gloo.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace cohort {
namespace {

/// Runs `body` in a child; returns its wait status and what it wrote to stderr.
template <typename Body>
std::pair<int, std::string> in_child(Body body) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    body();
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string text;
  char part[256];
  for (ssize_t length; (length = ::read(ends[0], part, sizeof part)) > 0;) text.append(part, static_cast<size_t>(length));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(pid, &status, 0);
  return {status, text};
}

TEST_CASE("a crash under the guard is one line and exit code 4") {
  for (const int signal : {SIGSEGV, SIGABRT, SIGBUS, SIGILL}) {
    const auto [status, text] = in_child([signal] {
      const CrashGuard guard("the declarations do not fit");
      ::raise(signal);
    });
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 4);
    CHECK(text == "cohort: error: the declarations do not fit\n");
  }
}

TEST_CASE("after the guard a crash is a crash again") {
  const auto [status, text] = in_child([] {
    {
      const CrashGuard guard("unused");
    }
    ::signal(SIGABRT, SIG_DFL);
    ::abort();
  });
  CHECK(WIFSIGNALED(status));
  CHECK(text.find("unused") == std::string::npos);
}

}  // namespace
}  // namespace cohort
