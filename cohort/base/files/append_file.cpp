#include "cohort/base/files/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace cohort {

AppendFile::AppendFile(std::string path) : path_(std::move(path)), descriptor_(open_file(path_, O_WRONLY | O_CREAT | O_APPEND)) {}

int64_t AppendFile::bytes() const {
  struct stat status{};
  if (::fstat(descriptor_.get(), &status) < 0) fail_errno(ErrorCode::kFailed, "stat", path_, errno);
  return status.st_size;
}

int AppendFile::cut() noexcept {
  if (torn_from_ < 0) return 0;
  int result = 0;
  do {
    result = ::ftruncate(descriptor_.get(), torn_from_);
  } while (result < 0 && errno == EINTR);
  if (result < 0) return errno;
  torn_from_ = -1;
  return 0;
}

int AppendFile::append(std::string_view piece) noexcept {
  if (const int reason = cut(); reason != 0) return reason;
  for (size_t done = 0; done < piece.size();) {
    const ssize_t written = ::write(descriptor_.get(), piece.data() + done, piece.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written > 0) {
      done += static_cast<size_t>(written);
      continue;
    }
    const int reason = written < 0 ? errno : ENOSPC;
    if (done == 0) return reason;
    // From the end, not from a size that was kept: somebody may have shortened the file meanwhile.
    const off_t end = ::lseek(descriptor_.get(), 0, SEEK_END);
    torn_from_ = end < 0 ? -1 : std::max<int64_t>(0, end - static_cast<int64_t>(done));
    cut();  // If this fails too, the next append tries again.
    return reason;
  }
  return 0;
}

int AppendFile::sync() noexcept {
  int result = 0;
  do {
    result = ::fdatasync(descriptor_.get());
  } while (result < 0 && errno == EINTR);
  // What cannot be synchronised (a pipe, /dev/stdout) is not late.
  return result < 0 && errno != EINVAL && errno != EROFS ? errno : 0;
}

void cut_torn_line(const std::string& path) {
  UniqueDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file && errno == ENOENT) return;
  if (!file) fail_errno(ErrorCode::kFailed, "open", path, errno);
  off_t end = ::lseek(file.get(), 0, SEEK_END);
  std::array<char, 4096> block{};
  while (end > 0) {
    const off_t begin = std::max<off_t>(0, end - static_cast<off_t>(block.size()));
    const ssize_t got = ::pread(file.get(), block.data(), static_cast<size_t>(end - begin), begin);
    if (got != end - begin) fail_errno(ErrorCode::kFailed, "read", path, got < 0 ? errno : EIO);
    const auto last = std::find(block.rend() - got, block.rend(), '\n');
    if (last != block.rend()) {
      end = begin + (block.rend() - last);
      break;
    }
    end = begin;
  }
  if (::ftruncate(file.get(), end) < 0) fail_errno(ErrorCode::kFailed, "shorten", path, errno);
}

}  // namespace cohort
