#include "cohort/base/files/folder_lock.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/testing/text.h"

using namespace cohort;

namespace {

std::string refusal(const std::string& path) {
  try {
    const FolderLock lock(path, "the thing", "wait for it");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kBadInput);
    return error.what();
  }
  return "taken";
}

/// Another process that takes the lock and keeps it; with `heir` it has forked a process that only waits.
pid_t start_holder(const std::string& path, pid_t* heir = nullptr) {
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const FolderLock lock(path, "", "");
    const pid_t forked = heir ? ::fork() : 1;
    if (forked == 0) ::pause();
    const ssize_t told = ::write(ready[1], &forked, sizeof forked);
    while (told > 0) ::pause();
    ::_exit(1);
  }
  pid_t forked = 0;
  REQUIRE(::read(ready[0], &forked, sizeof forked) == sizeof forked);
  if (heir) *heir = forked;
  ::close(ready[0]);
  ::close(ready[1]);
  return child;
}

}  // namespace

TEST_CASE("FolderLock: a second holder is refused and told who has it; a dead one's lock is taken over") {
  const TemporaryFolder folder;
  const std::string path = folder / "lock";
  const pid_t holder = start_holder(path);
  const std::string text = refusal(path);
  CHECK(contains(text, "the thing is in use by process " + std::to_string(holder) + " on "));
  CHECK(contains(text, " since 20"));
  CHECK(text.ends_with(": wait for it"));
  ::kill(holder, SIGKILL);
  ::waitpid(holder, nullptr, 0);
  CHECK(::access(path.c_str(), F_OK) == 0);  // Left behind, and no one's.
  CHECK(refusal(path) == "taken");
  CHECK(::access(path.c_str(), F_OK) != 0);
}

TEST_CASE("FolderLock: a process forked meanwhile keeps it, as the ranks of a launcher that was killed do") {
  const TemporaryFolder folder;
  const std::string path = folder / "lock";
  pid_t heir = 0;
  const pid_t holder = start_holder(path, &heir);
  ::kill(holder, SIGKILL);
  ::waitpid(holder, nullptr, 0);
  CHECK(contains(refusal(path), "in use by process " + std::to_string(holder)));
  ::kill(heir, SIGKILL);
  CHECK(refusal(path) == "taken");  // It waits for up to a second.
}
