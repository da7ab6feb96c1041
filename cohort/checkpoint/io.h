#pragma once
// The system calls that write a checkpoint as virtual functions, so that tests can record them, stop between any two, or make any fail.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/files/safetensors.h"

namespace cohort {

struct FileStatus {
  bool is_folder = false;
  int64_t bytes = 0;
  int64_t modified_seconds = 0;  ///< By the file system's clock: comparable only within it.
};

/// Each call is one system call: -1 and errno on failure, no retries. Thread-safe as the calls are.
class CheckpointIo {
 public:
  virtual ~CheckpointIo() = default;
  virtual int create(const std::string& path);       ///< A new file for writing; fails where the name exists. Returns a descriptor.
  virtual int open_folder(const std::string& path);  ///< For sync(). Returns a descriptor.
  virtual long write(int descriptor, const void* data, size_t size);
  virtual int sync(int descriptor);
  virtual int close(int descriptor);
  virtual int rename(const std::string& from, const std::string& to);
  virtual int make_folder(const std::string& path);
  virtual int unlink(const std::string& path);
  virtual int remove_folder(const std::string& path);
  virtual int status(const std::string& path, FileStatus* status);               ///< Does not follow symbolic links.
  virtual int list(const std::string& folder, std::vector<std::string>* names);  ///< Sorted, without "." and "..".
};

/// The real file system.
CheckpointIo& posix_io();

/// Number of completed calls that write, sync, rename or remove in this process, as a sign of progress. Thread-safe.
int64_t num_file_calls();

// The same calls with retries on EINTR; Error(kFailed) with action, path and cause on failure.
namespace checked {

void make_folder(CheckpointIo& io, const std::string& path);
void rename(CheckpointIo& io, const std::string& from, const std::string& to);
/// Durably creates `path` and (with `makes_above`) all missing folders above it.
void make_folders(CheckpointIo& io, const std::string& path, bool makes_above = true);
/// False where `from` does not exist.
bool rename_if_exists(CheckpointIo& io, const std::string& from, const std::string& to);
void unlink_if_exists(CheckpointIo& io, const std::string& path);
/// False where the name does not exist.
bool status(CheckpointIo& io, const std::string& path, FileStatus* status);
std::vector<std::string> list(CheckpointIo& io, const std::string& folder);
void sync_folder(CheckpointIo& io, const std::string& folder);
/// Creates `path`, lets `fill` write it, fsyncs, closes.
void write_file(CheckpointIo& io, const std::string& path, const std::function<void(const ByteSink&)>& fill);
/// Removes a folder of files, beginning with `first`. Missing files are ignored.
void remove_tree(CheckpointIo& io, const std::string& folder, const std::string& first = "");

}  // namespace checked
}  // namespace cohort
