#include "cohort/comm/failure/lifeline.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

namespace cohort {
namespace {

enum class Memory { kAttached, kDetached, kUnknown };

/// What the statm file of a process or thread says: its first number is the size of the program in pages.
Memory read_memory(int descriptor) {
  char text[2];
  const ssize_t length = ::pread(descriptor, text, sizeof text, 0);
  if (length < 0) return errno == ESRCH ? Memory::kDetached : Memory::kUnknown;
  if (length < static_cast<ssize_t>(sizeof text) || text[0] < '0' || text[0] > '9') return Memory::kUnknown;
  return text[0] == '0' && text[1] == ' ' ? Memory::kDetached : Memory::kAttached;
}

std::string proc(int pid, const char* name) { return "/proc/" + std::to_string(pid) + "/" + name; }

bool is_detached(const std::filesystem::path& thread) {
  const UniqueDescriptor statm(::open((thread / "statm").c_str(), O_RDONLY | O_CLOEXEC));
  // Gone since it was listed, or it says so itself.
  return statm ? read_memory(statm.get()) == Memory::kDetached : errno == ENOENT || errno == ESRCH;
}

/// Whether every thread of the process is detached. A thread that starts another one and ends may hide it from one listing, so threads are
/// listed until nobody new is seen.
bool are_all_detached(int pid) {
  std::vector<std::string> known;
  size_t num_before;
  do {
    num_before = known.size();
    std::error_code error;
    for (std::filesystem::directory_iterator thread(proc(pid, "task"), error), end; !error && thread != end; thread.increment(error)) {
      const std::string tid = thread->path().filename();
      if (std::find(known.begin(), known.end(), tid) != known.end()) continue;
      if (!is_detached(thread->path())) return false;
      known.push_back(tid);
    }
    if (error && error != std::errc::no_such_file_or_directory && error != std::errc::no_such_process) return false;
  } while (known.size() > num_before);
  return true;
}

}  // namespace

Lifeline::Lifeline(int pid) : pid_(pid), pidfd_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) {
  memory_.reset(::open(proc(pid, "statm").c_str(), O_RDONLY | O_CLOEXEC));
  // A system that shows no pages of a process that lives, as this one does until now, must not be believed later.
  if (memory_ && read_memory(memory_.get()) != Memory::kAttached) memory_.reset();
}

bool Lifeline::is_cut() const {
  if (memory_) {
    const Memory memory = read_memory(memory_.get());
    if (memory == Memory::kAttached) return false;
    if (memory == Memory::kDetached && are_all_detached(pid_)) return true;
  }
  if (!pidfd_) return false;
  pollfd poll{pidfd_.get(), POLLIN, 0};
  return ::poll(&poll, 1, 0) > 0;
}

}  // namespace cohort
