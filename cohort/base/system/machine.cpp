#include "cohort/base/system/machine.h"

#include <linux/perf_event.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/base/text/text.h"

namespace cohort {
namespace {

/// The numbers in a file, -1 for words such as "max"; empty where it cannot be read.
std::vector<int64_t> numbers_in(const std::string& path) {
  std::vector<int64_t> numbers;
  std::ifstream file(path);
  for (std::string word; numbers.size() < 2 && file >> word;) numbers.push_back(parse_integer(word).value_or(-1));
  return numbers;
}

int cores_for(int64_t quota, int64_t period) {
  if (quota < 1 || period < 1) return INT_MAX;
  return static_cast<int>(std::min<int64_t>((quota - 1) / period + 1, INT_MAX));
}

int limit_at(const std::string& folder) {
  int cores = INT_MAX;
  if (const auto both = numbers_in(folder + "/cpu.max"); both.size() == 2) cores = cores_for(both[0], both[1]);  // Version 2.
  const auto quota = numbers_in(folder + "/cpu.cfs_quota_us"), period = numbers_in(folder + "/cpu.cfs_period_us");
  if (quota.size() == 1 && period.size() == 1) cores = std::min(cores, cores_for(quota[0], period[0]));  // Version 1.
  return cores;
}

}  // namespace

int num_quota_cores(const std::string& of_process, const std::string& mounted) {
  int cores = INT_MAX;
  std::ifstream file(of_process);
  for (std::string line; std::getline(file, line);) {  // ID:CONTROLLERS:PATH; version 2 names no controllers.
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::vector<std::string> names = split(controllers, ',');
    if (!controllers.empty() && std::find(names.begin(), names.end(), "cpu") == names.end()) continue;
    std::vector<std::string> roots = {mounted, mounted + "/unified"};
    if (!controllers.empty()) roots = {mounted + "/" + controllers, mounted + "/cpu"};
    // A container may see its path on the host, of which only the end exists; missing folders are ignored.
    std::string path = line.substr(second + 1);
    if (path.find("..") != std::string::npos) path.clear();  // Outside of what is mounted here.
    for (const std::string& root : roots)
      for (std::string folder = path;; folder.resize(folder.rfind('/'))) {
        cores = std::min(cores, limit_at(root + folder));
        if (folder.rfind('/') == std::string::npos) break;
      }
  }
  return cores;
}

int num_usable_cores() { return std::min(num_affinity_cores(), num_quota_cores()); }

int num_affinity_cores() {
  // The kernel rejects a set smaller than its own, and a machine may have more cores than cpu_set_t holds.
  for (size_t most = CPU_SETSIZE; most <= size_t{1} << 20; most *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(most), [](cpu_set_t* given) { CPU_FREE(given); });
    if (!set) break;
    if (::sched_getaffinity(0, CPU_ALLOC_SIZE(most), set.get()) == 0) return std::max(1, CPU_COUNT_S(CPU_ALLOC_SIZE(most), set.get()));
    if (errno != EINVAL) break;
  }
  return static_cast<int>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
}

namespace {

/// The number behind `key` in a file of key-value lines, -1 without one; "" for a file that begins with the number.
int64_t number_in(const std::string& path, const std::string& key = "") {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::string word = trim(line);
    if (!word.starts_with(key)) continue;
    word = trim(word.substr(key.size()));
    return parse_integer(word.substr(0, word.find(' '))).value_or(-1);
  }
  return -1;
}

struct GroupFiles {
  const char *folder, *limit, *used, *droppable;
};
constexpr GroupFiles kVersion1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "};
constexpr GroupFiles kVersion2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "};

/// Memory that the cgroup `path` and its ancestors leave.
int64_t room_in_group(const GroupFiles& files, std::string path) {
  int64_t room = INT64_MAX;
  for (;;) {
    const std::string folder = files.folder + path + "/";
    const int64_t limit = number_in(folder + files.limit), used = number_in(folder + files.used);
    if (limit >= 0 && used >= 0)
      room = std::min(room, limit - used + std::max<int64_t>(0, number_in(folder + "memory.stat", files.droppable)));
    const size_t slash = path.rfind('/');
    if (path.empty() || slash == std::string::npos) return room;
    path.resize(slash);
  }
}

}  // namespace

int64_t available_memory_bytes() {
  int64_t bytes = ::sysconf(_SC_PHYS_PAGES) * ::sysconf(_SC_PAGESIZE);
  if (const int64_t free = number_in("/proc/meminfo", "MemAvailable:"); free >= 0) bytes = std::min(bytes, 1024 * free);
  std::ifstream groups("/proc/self/cgroup");  // number:controllers:path
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (controllers.empty()) bytes = std::min(bytes, room_in_group(kVersion2, path));
    else if (controllers == "memory") bytes = std::min(bytes, room_in_group(kVersion1, path));
  }
  return std::max<int64_t>(0, bytes);
}

int64_t peak_memory_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const int64_t shared = number_in("/proc/self/status", "RssShmem:"),
                part = shared > 0 ? number_in("/proc/self/smaps_rollup", "Pss_Shmem:") : -1;
  const int64_t of_others = part >= 0 ? std::max<int64_t>(0, shared - part) : 0;
  return (usage.ru_maxrss - of_others) * 1024;
}

int64_t resident_file_bytes() { return std::max<int64_t>(0, number_in("/proc/self/status", "RssFile:")) * 1024; }

void keep_freed_memory() {
#ifdef __GLIBC__
  ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
  ::mallopt(M_TRIM_THRESHOLD, INT_MAX);
  ::mallopt(M_TOP_PAD, 64 << 20);
#endif
}

namespace {

int num_forks = 0;

}  // namespace

int fork_count() {
  static const int registered = ::pthread_atfork(nullptr, nullptr, [] { ++num_forks; });
  (void)registered;
  return num_forks;
}

namespace {

int open_counter() {
  perf_event_attr attributes{};
  attributes.type = PERF_TYPE_HARDWARE;
  attributes.size = sizeof attributes;
  attributes.config = PERF_COUNT_HW_INSTRUCTIONS;
  attributes.exclude_kernel = 1;
  attributes.exclude_hv = 1;
  return static_cast<int>(::syscall(SYS_perf_event_open, &attributes, 0, -1, -1, PERF_FLAG_FD_CLOEXEC));
}

}  // namespace

InstructionCount::InstructionCount() : counter_(open_counter()) {}

std::optional<int64_t> InstructionCount::read() const {
  int64_t count = 0;
  if (counter_.get() < 0 || ::read(counter_.get(), &count, sizeof count) != sizeof count) return std::nullopt;
  return count;
}

}  // namespace cohort
