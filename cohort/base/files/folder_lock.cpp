#include "cohort/base/files/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <thread>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/base/text/utc_time.h"

namespace cohort {
namespace {

/// "123 on host since 2026-01-31T12:00:00Z", or "" for a file that says nothing.
std::string holder_of(int descriptor) {
  std::array<char, 256> text{};
  const ssize_t size = ::pread(descriptor, text.data(), text.size(), 0);
  return size > 0 ? printable(trim(std::string_view(text.data(), static_cast<size_t>(size)))) : "";
}

[[noreturn]] void fail_in_use(const std::string& what, const std::string& advice, int descriptor) {
  std::string holder;
  for (int attempt = 0; attempt < 20 && holder.empty(); ++attempt) {  // It may have the lock and not have written its name yet.
    if (attempt > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    holder = holder_of(descriptor);
  }
  fail(ErrorCode::kBadInput, what, " is in use by ", holder.empty() ? "another process" : "process " + holder, ": ", advice);
}

bool is_same_file(int descriptor, const std::string& path) {
  struct stat opened{}, named{};
  return ::fstat(descriptor, &opened) == 0 && ::stat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

}  // namespace

FolderLock::FolderLock(const std::string& path, const std::string& what, const std::string& advice) : path_(path) {
  using Clock = std::chrono::steady_clock;
  // Ranks of a launcher that was killed a moment ago are still on their way out.
  const Clock::time_point patience = Clock::now() + std::chrono::seconds(1);
  for (;;) {
    file_ = open_file(path, O_RDWR | O_CREAT);
    if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK && Clock::now() > patience) fail_in_use(what, advice, file_.get());
      if (errno == EWOULDBLOCK) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        continue;
      }
      if (errno != EINTR) fail_errno(ErrorCode::kEnvironment, "lock", path, errno);
    } else if (is_same_file(file_.get(), path)) {
      break;  // Else its holder removed it after we had opened it: the lock of a file without a name keeps no one out.
    }
  }
  std::array<char, 128> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
  const std::string holder = concat(::getpid(), " on ", host.data(), " since ", utc_now(), "\n");
  try {
    if (::ftruncate(file_.get(), 0) != 0) fail_errno(ErrorCode::kFailed, "write", path, errno);
    write_all(file_.get(), holder.data(), holder.size(), path);
  } catch (...) {
    ::unlink(path.c_str());
    throw;
  }
}

FolderLock::~FolderLock() {
  // Removed while it is still locked, or a third process could lock the old file and a fourth a new one.
  if (file_) ::unlink(path_.c_str());
}

}  // namespace cohort
