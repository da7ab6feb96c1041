#include "cohort/base/system/machine.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

TEST_CASE("a forked process counts on from its parent's number, which stays") {
  const int before = cohort::fork_count();
  const pid_t child = ::fork();
  if (child == 0) ::_exit(cohort::fork_count() - before);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WEXITSTATUS(status) == 1);
  CHECK(cohort::fork_count() == before);
}
