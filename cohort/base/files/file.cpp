#include "cohort/base/files/file.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/files/process_identity.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/text.h"

namespace cohort {

void UniqueDescriptor::reset(int descriptor) noexcept {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = descriptor;
}

ErrorCode error_code_of_errno(ErrorCode code, int errno_value) { return errno_value == ENAMETOOLONG ? ErrorCode::kBadInput : code; }

void fail_errno(ErrorCode code, const std::string& action, const std::string& path, int errno_value) {
  // generic_category().message() is strerror without its shared buffer.
  fail(error_code_of_errno(code, errno_value), "cannot ", action, " ", path, ": ", std::generic_category().message(errno_value));
}

UniqueDescriptor open_file(const std::string& path, int flags, unsigned mode) {
  const int descriptor = retried([&] { return ::open(path.c_str(), flags | O_CLOEXEC, static_cast<mode_t>(mode)); });
  if (descriptor < 0) {
    const int reason = errno;
    const bool reading = (flags & O_ACCMODE) == O_RDONLY;
    std::error_code ignored;
    if (reading && reason == ENOENT && !path.starts_with('/'))
      fail(ErrorCode::kBadInput, "cannot open ", path, ": No such file or directory in ", std::filesystem::current_path(ignored).string());
    fail_errno(reading ? ErrorCode::kBadInput : ErrorCode::kFailed, reading ? "open" : "create", path, reason);
  }
  return UniqueDescriptor(descriptor);
}

void write_fully(const WriteFunction& write, const void* data, size_t size, const std::string& path) {
  // Linux writes at most 0x7ffff000 bytes a call; smaller writes also let signals be handled in time.
  constexpr size_t kMaxBytesPerCall = size_t{1} << 30;
  const auto* bytes = static_cast<const std::byte*>(data);
  for (size_t done = 0; done < size;) {
    const long written = write(bytes + done, std::min(size - done, kMaxBytesPerCall));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_errno(ErrorCode::kFailed, "write", path, errno);
    if (written == 0) fail(ErrorCode::kFailed, "cannot write ", path, ": the system took 0 of ", size - done, " bytes");
    done += static_cast<size_t>(written);
  }
}

void write_all(int descriptor, const void* data, size_t size, const std::string& path) {
  write_fully([descriptor](const void* part, size_t bytes) { return ::write(descriptor, part, bytes); }, data, size, path);
}

static bool synced(int descriptor) {
  return retried([&] { return ::fsync(descriptor); }) == 0;
}

void sync_descriptor(int descriptor, const std::string& path) {
  if (!synced(descriptor)) fail_errno(ErrorCode::kFailed, "fsync", path, errno);
}

void sync_folder(const std::string& folder) {
  const UniqueDescriptor descriptor = open_file(folder, O_RDONLY | O_DIRECTORY);
  if (!synced(descriptor.get()) && !has_no_folder_sync(folder, errno)) fail_errno(ErrorCode::kFailed, "fsync", folder, errno);
}

bool has_no_folder_sync(const std::string& folder, int errno_value) {
  if (errno_value != EINVAL && errno_value != ENOTSUP && errno_value != ENOSYS) return false;
  static std::atomic<bool> is_said{false};
  if (!is_said.exchange(true))
    log_warning(concat(
        folder, ": this file system cannot make the names in a folder durable (fsync: ", std::generic_category().message(errno_value),
        "): a crash of the machine may take the newest files; a kill of the process takes none"));
  return true;
}

std::string parent_folder(const std::string& path) {
  size_t end = path.size();
  while (end > 1 && path[end - 1] == '/') --end;
  const size_t slash = path.rfind('/', end == 0 ? 0 : end - 1);
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

UniqueDescriptor open_regular_file(const std::string& path, int64_t* num_bytes) {
  UniqueDescriptor descriptor = open_file(path, O_RDONLY | O_NONBLOCK);  // Opening a pipe must not wait for a writer.
  struct stat status{};
  if (::fstat(descriptor.get(), &status) < 0) fail_errno(ErrorCode::kBadInput, "stat", path, errno);
  if (!S_ISREG(status.st_mode))
    fail(ErrorCode::kBadInput, "cannot read ", path,
         S_ISDIR(status.st_mode) ? ": it is a folder, not a regular file" : ": it is not a regular file");
  *num_bytes = status.st_size;
  return descriptor;
}

std::string read_small_file(const std::string& path, size_t max_bytes) {
  int64_t num_bytes = 0;
  const UniqueDescriptor descriptor = open_regular_file(path, &num_bytes);
  // The size of a file of /proc is 0 whatever it holds, so the limit is checked on what is read as well.
  if (static_cast<uint64_t>(num_bytes) > max_bytes)
    fail(ErrorCode::kBadInput, "cannot read ", path, ": ", num_bytes, " bytes, at most ", max_bytes, " are accepted");
  std::string content;
  content.reserve(static_cast<size_t>(num_bytes));  // Doubled room would be up to three times that of a large file.
  std::vector<char> buffer(std::min<size_t>(max_bytes + 1, 1 << 16));
  while (true) {
    const ssize_t got = retried([&] { return ::read(descriptor.get(), buffer.data(), buffer.size()); });
    if (got < 0) fail_errno(ErrorCode::kBadInput, "read", path, errno);
    if (got == 0) return content;
    content.append(buffer.data(), static_cast<size_t>(got));
    if (content.size() > max_bytes)
      fail(ErrorCode::kBadInput, "cannot read ", path, ": more than the ", max_bytes, " bytes that are accepted");
  }
}

void check_replaceable_file(const std::string& path) {
  struct stat status{};
  // The temporary name is longer.
  const size_t slash = path.rfind('/'), length = slash == std::string::npos ? path.size() : path.size() - slash - 1;
  const size_t most = NAME_MAX - temporary_name("").size();
  if (length > most)
    fail(ErrorCode::kBadInput, "cannot write ", path, ": its name has ", length, " letters, and at most ", most, " are possible");
  // rename(2) itself refuses a folder.
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode))
    fail(ErrorCode::kBadInput, "cannot write ", path, ": it is ",
         S_ISFIFO(status.st_mode)   ? "a pipe"
         : S_ISSOCK(status.st_mode) ? "a socket"
                                    : "a device",
         ", and a file would take its place; name a regular file");
}

void write_file_atomically(const std::string& path, const std::string& content) {
  check_replaceable_file(path);
  const std::string temporary = temporary_name(path);
  struct stat replaced{};
  const bool has_mode = ::stat(path.c_str(), &replaced) == 0;
  try {
    UniqueDescriptor descriptor = open_file(temporary, O_WRONLY | O_CREAT | O_EXCL);
    if (has_mode) ::fchmod(descriptor.get(), replaced.st_mode & 0777);  // Keeps the permissions.
    write_all(descriptor.get(), content.data(), content.size(), temporary);
    sync_descriptor(descriptor.get(), temporary);
    // Network file systems report a full disk as late as close.
    if (::close(descriptor.release()) < 0 && errno != EINTR) fail_errno(ErrorCode::kFailed, "close", temporary, errno);
    if (::rename(temporary.c_str(), path.c_str()) < 0) fail_errno(ErrorCode::kFailed, "rename " + temporary + " to", path, errno);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync_folder(parent_folder(path));
}

std::string random_name() {
  uint64_t bits = 0;
  // 8 bytes are never delivered in part; before the kernel's pool is ready the call waits.
  while (::getrandom(&bits, sizeof bits, 0) != static_cast<ssize_t>(sizeof bits)) {
    if (errno != EINTR) fail_errno(ErrorCode::kEnvironment, "read", "the kernel's random numbers", errno);
  }
  return hexadecimal_digits(bits);
}

std::string temporary_name(const std::string& path) {
  static std::atomic<uint64_t> count{0};
  return path + ".tmp." + process_nonce(++count);
}

TemporaryFolder::TemporaryFolder(const std::string& name, const std::string& base) {
  const char* const given = std::getenv("TMPDIR");
  const std::string place = !base.empty() ? base : given && *given ? given : "/tmp";
  remove_leftover_folders(place, name);
  path_ = place + "/" + name + "-" + process_nonce() + "-XXXXXX";
  if (::mkdtemp(path_.data())) return;
  fail(ErrorCode::kBadInput, "no temporary folder ", name, "-XXXXXX can be made in ", place, base.empty() ? " (TMPDIR, else /tmp): " : ": ",
       std::strerror(errno), base.empty() ? "; set TMPDIR to a folder that takes files" : "");
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;  // A destructor cannot report it.
  std::filesystem::remove_all(path_, ignored);
}

AppendFile::AppendFile(std::string path) : path_(std::move(path)), descriptor_(open_file(path_, O_WRONLY | O_CREAT | O_APPEND)) {}

int64_t AppendFile::bytes() const {
  struct stat status{};
  if (::fstat(descriptor_.get(), &status) < 0) fail_errno(ErrorCode::kFailed, "stat", path_, errno);
  return status.st_size;
}

int AppendFile::cut() noexcept {
  if (torn_from_ < 0) return 0;
  if (retried([&] { return ::ftruncate(descriptor_.get(), torn_from_); }) < 0) return errno;
  torn_from_ = -1;
  return 0;
}

int AppendFile::append(std::string_view record) noexcept {
  if (const int reason = cut(); reason != 0) return reason;
  for (size_t done = 0; done < record.size();) {
    const ssize_t written = ::write(descriptor_.get(), record.data() + done, record.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written > 0) {
      done += static_cast<size_t>(written);
      continue;
    }
    const int reason = written < 0 ? errno : ENOSPC;
    if (done == 0) return reason;
    // Computed from the current end: another process may have shortened the file.
    const off_t end = ::lseek(descriptor_.get(), 0, SEEK_END);
    torn_from_ = end < 0 ? -1 : std::max<int64_t>(0, end - static_cast<int64_t>(done));
    cut();  // If this fails too, the next append tries again.
    return reason;
  }
  return 0;
}

int AppendFile::sync() noexcept {
  const int result = retried([&] { return ::fdatasync(descriptor_.get()); });
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
