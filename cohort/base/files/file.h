#pragma once
// Files: read whole, written at once or line by line.

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "cohort/base/export.h"
#include "cohort/base/fail.h"

namespace cohort {

// POSIX files without leaks and without silent half-writes. Every failure is an Error whose text has the action, the path and the system's
// reason. Functions are thread-safe unless two threads use one descriptor or one path.

/// Owns a file descriptor and closes it. Movable; -1 is "none".
class UniqueDescriptor {
 public:
  UniqueDescriptor() = default;
  explicit UniqueDescriptor(int descriptor) : descriptor_(descriptor) {}
  UniqueDescriptor(UniqueDescriptor&& other) noexcept : descriptor_(other.release()) {}
  UniqueDescriptor& operator=(UniqueDescriptor&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~UniqueDescriptor() { reset(); }

  int get() const { return descriptor_; }
  explicit operator bool() const { return descriptor_ >= 0; }
  int release() { return std::exchange(descriptor_, -1); }
  void reset(int descriptor = -1) noexcept;

 private:
  int descriptor_ = -1;
};

/// kBadInput for a name that is too long, which is who gave it, whatever was to be done with it; else `code`.
ErrorCode code_of_errno(ErrorCode code, int errno_value);
/// Throws Error(code) "cannot <action> <path>: <text of errno_value>", with code_of_errno().
[[noreturn]] void fail_errno(ErrorCode code, const std::string& action, const std::string& path, int errno_value);

/// Calls a system call again for as long as a signal interrupts it; returns its result.
template <typename Call>
auto retried(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

/// open(2) with O_CLOEXEC, repeated on EINTR. Error(kBadInput) when it fails for reading, Error(kFailed) when it fails for writing.
UniqueDescriptor open_file(const std::string& path, int flags, unsigned mode = 0666);

/// Writes `size` bytes with any function of the kind of write(2): goes on after a short write and after EINTR. Error(kFailed) otherwise.
using WriteFunction = std::function<long(const void* data, size_t size)>;
void write_fully(const WriteFunction& write, const void* data, size_t size, const std::string& path);
void write_all(int descriptor, const void* data, size_t size, const std::string& path);

/// fsync(2), repeated on EINTR only: after any other error the kernel may have dropped the data, so a second try would lie.
void sync_descriptor(int descriptor, const std::string& path);
/// Makes the names in `folder` (creations, renames, removals) durable.
void sync_folder(const std::string& folder);
/// Whether `errno_value`, of an fsync of `folder`, says that its file system has none of folders, as CIFS and some of FUSE. That is passed
/// over, and said once.
bool has_no_folder_sync(const std::string& folder, int errno_value);
/// The folder of a path as open(2) takes it: "." for a bare name, "/" for "/name". A trailing slash is ignored.
std::string parent_folder(const std::string& path);

/// Opens a regular file for reading; `num_bytes` receives its size. Error(kBadInput) when it is missing, or something else (folder, pipe).
UniqueDescriptor open_regular_file(const std::string& path, int64_t* num_bytes);
/// The content of a regular file of at most `max_bytes`. Error(kBadInput) when it is missing, is something else (folder, pipe) or is
/// larger.
COHORT_PROGRAM_API std::string read_small_file(const std::string& path, size_t max_bytes);
/// Error(kBadInput) where `path` is a device, a pipe or a socket, whose place a file written atomically would take.
void check_replaceable_file(const std::string& path);
/// Writes a temporary name beside `path`, fsyncs, renames over `path`, fsyncs the folder: a reader sees the old content or the new, whole.
/// Only a regular file's place is taken.
COHORT_PROGRAM_API void write_file_atomically(const std::string& path, const std::string& content);

/// 16 hexadecimal digits from the kernel's random source: for names and nonces, not a secret to guess by brute force.
std::string random_name();
/// "<path>.tmp.<16 hex digits>": a name beside `path` that no other process uses; the digits say which one does (process_nonce()).
std::string temporary_name(const std::string& path);

/// A fresh folder NAME-NONCE-XXXXXX with mode 0700 below `base` (default: $TMPDIR, else /tmp), removed with all that is in it on
/// destruction, or, after a kill, when the next one of that name is made. Error(kBadInput) where none can be made.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::string& name = "cohort", const std::string& base = "");
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// A file that grows by whole pieces: lines of metrics, records of events. What a full disk takes only half of is cut off again.

/// One writer, one thread. Nothing waits in a buffer of the process, so a kill of the process loses no piece that was appended.
class AppendFile {
 public:
  /// Opens `path`, or makes it. Error(kFailed).
  explicit AppendFile(std::string path);
  /// Appends all of `piece`, as a rule by one write(2). Returns 0, or the errno of what went wrong: then none of it is in the file. Only a
  /// kill in the middle of a write that the disk cut short leaves a part.
  int append(std::string_view piece) noexcept;
  /// Waits until what was appended is on the disk; network file systems report a full disk as late as here. 0 or the errno.
  int sync() noexcept;

  const std::string& path() const { return path_; }
  int64_t bytes() const;  ///< Of the file now.

 private:
  int cut() noexcept;

  std::string path_;
  UniqueDescriptor descriptor_;
  int64_t torn_from_ = -1;  ///< Where a piece begins that could neither be finished nor cut off yet.
};

/// Cuts what stands after the last line feed: the part of a line that a kill may leave. A file that is missing is left so. Error(kFailed).
void cut_torn_line(const std::string& path);

}  // namespace cohort
