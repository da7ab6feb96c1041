#include "cohort/checkpoint/io.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

#include "cohort/base/files/file.h"

namespace cohort {
namespace {

std::atomic<int64_t> num_calls{0};

template <typename Result>
Result counted(Result result) {
  ++num_calls;
  return result;
}

}  // namespace

int64_t num_file_calls() { return num_calls; }

int CheckpointIo::create(const std::string& path) { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); }
int CheckpointIo::open_folder(const std::string& path) { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }
long CheckpointIo::write(int descriptor, const void* data, size_t size) { return counted(::write(descriptor, data, size)); }
int CheckpointIo::sync(int descriptor) { return counted(::fsync(descriptor)); }
int CheckpointIo::close(int descriptor) { return ::close(descriptor); }
int CheckpointIo::rename(const std::string& from, const std::string& to) { return counted(::rename(from.c_str(), to.c_str())); }
int CheckpointIo::make_folder(const std::string& path) { return ::mkdir(path.c_str(), 0777); }
int CheckpointIo::unlink(const std::string& path) { return counted(::unlink(path.c_str())); }
int CheckpointIo::remove_folder(const std::string& path) { return ::rmdir(path.c_str()); }

int CheckpointIo::status(const std::string& path, FileStatus* status) {
  struct stat found{};
  if (::lstat(path.c_str(), &found) < 0) return -1;
  *status = {S_ISDIR(found.st_mode), found.st_size, found.st_mtim.tv_sec};
  return 0;
}

int CheckpointIo::list(const std::string& folder, std::vector<std::string>* names) {
  DIR* stream = ::opendir(folder.c_str());
  if (stream == nullptr) return -1;
  names->clear();
  errno = 0;
  while (const dirent* entry = ::readdir(stream)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names->push_back(name);
    errno = 0;  // Only errno distinguishes the end of the folder from a failure.
  }
  const int reason = errno;
  ::closedir(stream);
  std::sort(names->begin(), names->end());
  errno = reason;
  return reason == 0 ? 0 : -1;
}

CheckpointIo& posix_io() {
  static CheckpointIo io;
  return io;
}

namespace checked {
namespace {

[[noreturn]] void give_up(const std::string& action, const std::string& path) { fail_errno(ErrorCode::kFailed, action, path, errno); }

/// Closes the descriptor on errors; now() closes it with error handling.
struct Closing {
  CheckpointIo& io;
  int descriptor;
  ~Closing() {
    if (descriptor >= 0) io.close(descriptor);
  }
  void now(const std::string& path) {
    // After EINTR Linux has closed the descriptor; a retry could close another one.
    if (io.close(std::exchange(descriptor, -1)) < 0 && errno != EINTR) give_up("close", path);
  }
};

}  // namespace

void make_folder(CheckpointIo& io, const std::string& path) {
  if (retried([&] { return io.make_folder(path); }) < 0) give_up("make folder", path);
}

void make_folders(CheckpointIo& io, const std::string& path, bool makes_above) {
  if (retried([&] { return io.make_folder(path); }) < 0) {
    if (errno == EEXIST) return;
    const std::string parent = parent_folder(path);
    if (errno != ENOENT || parent == path || !makes_above) give_up("make folder", path);
    make_folders(io, parent);
    // Another process may have created it in between; both make the name durable.
    if (retried([&] { return io.make_folder(path); }) < 0 && errno != EEXIST) give_up("make folder", path);
  }
  sync_folder(io, parent_folder(path));
}

void rename(CheckpointIo& io, const std::string& from, const std::string& to) {
  if (retried([&] { return io.rename(from, to); }) < 0) give_up("rename " + from + " to", to);
}

bool rename_if_exists(CheckpointIo& io, const std::string& from, const std::string& to) {
  if (retried([&] { return io.rename(from, to); }) == 0) return true;
  if (errno != ENOENT) give_up("rename " + from + " to", to);
  return false;
}

void unlink_if_exists(CheckpointIo& io, const std::string& path) {
  if (retried([&] { return io.unlink(path); }) < 0 && errno != ENOENT) give_up("remove", path);
}

bool status(CheckpointIo& io, const std::string& path, FileStatus* status) {
  if (retried([&] { return io.status(path, status); }) == 0) return true;
  if (errno != ENOENT) give_up("stat", path);
  return false;
}

std::vector<std::string> list(CheckpointIo& io, const std::string& folder) {
  std::vector<std::string> names;
  if (retried([&] { return io.list(folder, &names); }) < 0) give_up("list folder", folder);
  return names;
}

void sync_folder(CheckpointIo& io, const std::string& folder) {
  Closing opened{io, retried([&] { return io.open_folder(folder); })};
  if (opened.descriptor < 0) give_up("open folder", folder);
  if (retried([&] { return io.sync(opened.descriptor); }) < 0 && !has_no_folder_sync(folder, errno)) give_up("fsync", folder);
  opened.now(folder);
}

void write_file(CheckpointIo& io, const std::string& path, const std::function<void(const ByteSink&)>& fill) {
  Closing opened{io, retried([&] { return io.create(path); })};
  if (opened.descriptor < 0) give_up("create", path);
  const auto write = [&](const void* part, size_t bytes) { return io.write(opened.descriptor, part, bytes); };
  fill([&](const void* data, size_t size) { write_fully(write, data, size, path); });
  if (retried([&] { return io.sync(opened.descriptor); }) < 0) give_up("fsync", path);
  opened.now(path);  // Network file systems report a full disk as late as here.
}

void remove_tree(CheckpointIo& io, const std::string& folder, const std::string& first) {
  std::vector<std::string> names;
  if (retried([&] { return io.list(folder, &names); }) < 0) {
    if (errno == ENOENT) return;
    give_up("list folder", folder);
  }
  std::stable_partition(names.begin(), names.end(), [&](const std::string& name) { return name == first; });
  for (const std::string& name : names) unlink_if_exists(io, folder + "/" + name);
  if (retried([&] { return io.remove_folder(folder); }) < 0 && errno != ENOENT) give_up("remove folder", folder);
}

}  // namespace checked
}  // namespace cohort
