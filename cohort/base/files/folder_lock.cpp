#include "cohort/base/files/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>

#include "cohort/base/fail.h"
#include "cohort/base/files/process_identity.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

constexpr size_t kMostTextBytes = 1024;

/// The content of the lock file: "123 on host since 2026-01-31T12:00:00Z", and a second line that identifies the process.
std::string text_of(int descriptor) {
  std::array<char, kMostTextBytes> text{};
  const ssize_t size = ::pread(descriptor, text.data(), text.size(), 0);
  return size > 0 ? std::string(text.data(), static_cast<size_t>(size)) : "";
}

[[noreturn]] void fail_in_use(const std::string& what, const std::string& advice, int descriptor) {
  std::string holder;
  for (int attempt = 0; attempt < 20 && holder.empty(); ++attempt) {  // The holder may not have written its name yet.
    if (attempt > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const std::string text = text_of(descriptor);
    holder = printable(trim(text.substr(0, text.find('\n'))));
  }
  fail(ErrorCode::kBadInput, what, " is in use by ", holder.empty() ? "another process" : "process " + holder, ": ", advice);
}

bool is_same_file(int descriptor, const std::string& path) {
  struct stat opened{}, named{};
  return ::fstat(descriptor, &opened) == 0 && ::stat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

bool has_no_flock(int reason) { return reason == ENOSYS || reason == ENOLCK || reason == EOPNOTSUPP; }

/// Without flock: removes the file of a holder that is certainly dead. The rename lets only one of two processes do this.
bool take_away(const std::string& path, int descriptor) {
  const std::string text = text_of(descriptor);
  const size_t line = text.find('\n');
  if (line == std::string::npos || process_state(text.substr(line + 1)) != ProcessState::kGone) return false;
  const std::string aside = temporary_name(path);
  if (!is_same_file(descriptor, path) || ::rename(path.c_str(), aside.c_str()) != 0) return true;
  if (is_same_file(descriptor, aside)) ::unlink(aside.c_str());
  else if (::link(aside.c_str(), path.c_str()) == 0) ::unlink(aside.c_str());  // It is the lock of a faster process.
  return true;
}

}  // namespace

FolderLock::FolderLock(const std::string& path, const std::string& what, const std::string& advice) : path_(path) {
  using Clock = std::chrono::steady_clock;
  // Ranks of a launcher that was just killed may still be exiting.
  const Clock::time_point patience = Clock::now() + std::chrono::seconds(1);
  for (;; std::this_thread::sleep_for(std::chrono::milliseconds(10))) {
    file_.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    const bool is_new = static_cast<bool>(file_);
    if (!is_new) file_ = open_file(path, O_RDWR | O_CREAT);
    int reason = 0;
    do {
      reason = ::flock(file_.get(), LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    } while (reason == EINTR);
    // Otherwise its holder removed it after we had opened it, and locking an unlinked file excludes nobody.
    if (reason == 0 && is_same_file(file_.get(), path)) break;
    if (reason == 0) continue;
    const bool is_late = Clock::now() > patience;
    if (reason == EWOULDBLOCK) {
      if (is_late) fail_in_use(what, advice, file_.get());
      continue;
    }
    if (!has_no_flock(reason)) {
      if (is_new) ::unlink(path.c_str());
      fail_errno(ErrorCode::kEnvironment, "lock", path, reason);
    }
    if (is_new) {  // No other process can have created it.
      log_warning(concat(path, ": this file system has no locks (flock: ", std::generic_category().message(reason),
                         "), so what keeps others out is that this file is there; a holder that is killed on another host leaves it, and "
                         "it has to be removed by hand then"));
      break;
    }
    if (is_late && !take_away(path, file_.get()))
      fail_in_use(what, concat(advice, "; where there is no such process any more, remove ", path), file_.get());
  }
  std::array<char, 128> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
  const std::string holder = concat(::getpid(), " on ", host.data(), " since ", utc_now(), "\n", describe_this_process());
  try {
    if (::ftruncate(file_.get(), 0) != 0) fail_errno(ErrorCode::kFailed, "write", path, errno);
    write_all(file_.get(), holder.data(), holder.size(), path);
  } catch (...) {
    ::unlink(path.c_str());
    throw;
  }
}

FolderLock::~FolderLock() {
  if (!file_) return;
  // Removed while still locked, or a third process could lock the old file and a fourth a new one. The folder may have been renamed, and
  // the old name may hold another process's lock.
  std::array<char, 4096> name{};
  const std::string link = concat("/proc/self/fd/", file_.get());
  const ssize_t length = ::readlink(link.c_str(), name.data(), name.size() - 1);
  for (const std::string& path : {path_, std::string(name.data(), length > 0 ? static_cast<size_t>(length) : 0)})
    if (is_same_file(file_.get(), path)) ::unlink(path.c_str());
}

}  // namespace cohort
