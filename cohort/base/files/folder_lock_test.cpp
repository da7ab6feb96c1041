#include "cohort/base/files/folder_lock.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "tests/support/text.h"

using namespace cohort;

namespace {

/// File systems without these calls. The program's own definitions come before libc's.
int flock_fails_with = 0, fsync_fails_with = 0;

int failing(int reason) {
  errno = reason;
  return -1;
}

}  // namespace

extern "C" int flock(int descriptor, int operation) noexcept {
  return flock_fails_with != 0 ? failing(flock_fails_with) : static_cast<int>(::syscall(SYS_flock, descriptor, operation));
}

extern "C" int fsync(int descriptor) {
  struct stat status{};
  const bool is_folder = ::fstat(descriptor, &status) == 0 && S_ISDIR(status.st_mode);
  return is_folder && fsync_fails_with != 0 ? failing(fsync_fails_with) : static_cast<int>(::syscall(SYS_fsync, descriptor));
}

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

TEST_CASE("FolderLock: without flock the file is the lock, of a living holder and not of a dead one") {
  const TemporaryFolder folder;
  const std::string path = folder / "lock";
  for (const int reason : {ENOLCK}) {
    flock_fails_with = reason;
    const pid_t holder = start_holder(path);
    const std::string text = refusal(path);
    CHECK(contains(text, "in use by process " + std::to_string(holder) + " on "));
    CHECK(contains(text, "remove " + path));
    ::kill(holder, SIGKILL);
    ::waitpid(holder, nullptr, 0);
    CHECK(refusal(path) == "taken");
    CHECK(::access(path.c_str(), F_OK) != 0);
  }
  flock_fails_with = EIO;
  CHECK_THROWS_WITH_AS(FolderLock(path, "x", "y"), doctest::Contains("cannot lock"), Error);
  CHECK(::access(path.c_str(), F_OK) != 0);  // A rejected lock leaves no file behind.
  flock_fails_with = 0;
}

TEST_CASE("FolderLock: a folder that was moved keeps its lock until the end, and the old name another's") {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "a");
  {
    const FolderLock lock(folder / "a/lock", "x", "y");
    std::filesystem::rename(folder / "a", folder / "b");
    std::filesystem::create_directory(folder / "a");
    std::ofstream(folder / "a/lock") << "another's";
  }
  CHECK(std::filesystem::exists(folder / "a/lock"));
  CHECK(!std::filesystem::exists(folder / "b/lock"));
}

TEST_CASE("sync_folder: a file system without fsync of folders is passed over") {
  const TemporaryFolder folder;
  fsync_fails_with = EINVAL;
  CHECK_NOTHROW(sync_folder(folder.path()));
  CHECK_NOTHROW(write_file_atomically(folder / "x", "y"));
  fsync_fails_with = EIO;
  CHECK_THROWS_AS(sync_folder(folder.path()), Error);
  fsync_fails_with = 0;
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
