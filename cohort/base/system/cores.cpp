#include "cohort/base/system/cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <fstream>
#include <memory>
#include <optional>
#include <vector>

#include "cohort/base/text/text.h"

namespace cohort {
namespace {

/// The file's numbers, "max" and everything else that is none as -1; no numbers where it cannot be read.
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
    // A container may see its path on the host, of which it has only the end: folders that are not there say nothing.
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
  // The kernel refuses a set smaller than its own, and a machine may have more cores than cpu_set_t holds.
  for (size_t most = CPU_SETSIZE; most <= size_t{1} << 20; most *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(most), [](cpu_set_t* given) { CPU_FREE(given); });
    if (!set) break;
    if (::sched_getaffinity(0, CPU_ALLOC_SIZE(most), set.get()) == 0) return std::max(1, CPU_COUNT_S(CPU_ALLOC_SIZE(most), set.get()));
    if (errno != EINVAL) break;
  }
  return static_cast<int>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
}

}  // namespace cohort
