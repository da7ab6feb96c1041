#include "cohort/base/system/memory.h"

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <fstream>
#include <string>

#include "cohort/base/text/text.h"

namespace cohort {
namespace {

/// The number behind `key` in a file of such lines; -1: there is none. An empty key: the first word is the number.
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

/// What the control group `path` and those above it leave.
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

}  // namespace cohort
