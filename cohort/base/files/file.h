#pragma once
// POSIX files: read whole, replaced atomically, or appended to. Errors have the action, the path and the system's reason.

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

/// Owns a file descriptor and closes it. Movable; -1 is "none".
class COHORT_PROGRAM_API UniqueDescriptor {
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

/// kBadInput for a name that is too long (the user's mistake), else `code`.
ErrorCode error_code_of_errno(ErrorCode code, int errno_value);
/// Throws Error(code) "cannot <action> <path>: <text of errno_value>", with error_code_of_errno().
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
/// Whether `errno_value` of an fsync of `folder` means that its file system cannot sync folders (CIFS, some FUSE). Warns once.
bool has_no_folder_sync(const std::string& folder, int errno_value);
/// The folder of a path as open(2) takes it: "." for a bare name, "/" for "/name". A trailing slash is ignored.
std::string parent_folder(const std::string& path);

/// Opens a regular file for reading; `num_bytes` receives its size. Error(kBadInput) when it is missing, or something else (folder, pipe).
UniqueDescriptor open_regular_file(const std::string& path, int64_t* num_bytes);
/// The content of a regular file of at most `max_bytes`. Error(kBadInput) when it is missing, is something else (folder, pipe) or is
/// larger.
COHORT_PROGRAM_API std::string read_small_file(const std::string& path, size_t max_bytes);
/// Error(kBadInput) where `path` is a device, a pipe or a socket, which an atomically written file would replace.
void check_replaceable_file(const std::string& path);
/// Writes a temporary file beside `path`, fsyncs, renames over `path`, fsyncs the folder: a reader sees the whole old content or the whole
/// new one. Replaces regular files only.
COHORT_PROGRAM_API void write_file_atomically(const std::string& path, const std::string& content);

/// 16 random hexadecimal digits for names and nonces; not a secret.
std::string random_name();
/// "<path>.tmp.<16 hex digits>", which no other process uses; the digits identify this process (process_nonce()).
std::string temporary_name(const std::string& path);

/// A new folder NAME-NONCE-XXXXXX with mode 0700 below `base` (default: $TMPDIR, else /tmp), removed with its content on destruction or,
/// after a kill, when the next one of that name is made. Error(kBadInput) where it cannot be made.
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

/// A file that grows by whole records (lines of metrics, events): a record that a full disk takes only in part is cut off again. Nothing is
/// buffered in the process, so a kill loses no record. One writer, one thread.
class AppendFile {
 public:
  /// Opens or creates `path`. Error(kFailed).
  explicit AppendFile(std::string path);
  /// Appends the whole record, usually by one write(2). Returns 0, or an errno: then nothing of it is in the file, unless the process is
  /// killed during a short write.
  int append(std::string_view record) noexcept;
  /// Flushes to disk; network file systems report a full disk only here. Returns 0 or the errno.
  int sync() noexcept;

  const std::string& path() const { return path_; }
  int64_t bytes() const;  ///< Current size of the file.

 private:
  int cut() noexcept;

  std::string path_;
  UniqueDescriptor descriptor_;
  int64_t torn_from_ = -1;  ///< Offset of a partial record that could not be cut off yet; -1: none.
};

/// Removes a partial last line, which a kill may leave. Does nothing where the file is missing. Error(kFailed).
void cut_torn_line(const std::string& path);

}  // namespace cohort
