#include "cohort/base/system/machine.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <filesystem>
#include <fstream>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

namespace fs = std::filesystem;

struct Cgroups {
  const fs::path folder = fs::temp_directory_path() / concat("cohort-cores-", ::getpid());
  Cgroups() { fs::create_directories(folder); }
  ~Cgroups() { fs::remove_all(folder); }
  void write(const std::string& file, const std::string& text) const {
    fs::create_directories((folder / file).parent_path());
    std::ofstream(folder / file) << text;
  }
  int cores(const std::string& of_process) const {
    write("of_process", of_process);
    return num_quota_cores(folder / "of_process", folder / "mounted");
  }
};

TEST_CASE("cores: the quota of a cgroup, version 2") {
  const Cgroups cgroups;
  CHECK(cgroups.cores("0::/\n") == INT_MAX);
  const auto of_text = [&](const std::string& text) {
    cgroups.write("mounted/cpu.max", text);
    return cgroups.cores("0::/\n");
  };
  CHECK(of_text("max 100000\n") == INT_MAX);
  CHECK(of_text("150000 100000\n") == 2);
  CHECK(of_text("200000 100000\n") == 2);
  CHECK(of_text("1000 100000\n") == 1);
  for (const char* none :
       {"", "\n", "max", "150000", "150000 0", "0 100000", "-1 100000", "1e5 100000", "nonsense here", "99999999999999999999 1"})
    CHECK_MESSAGE(of_text(none) == INT_MAX, none);
  CHECK(of_text("9223372036854775807 1") == INT_MAX);

  cgroups.write("mounted/cpu.max", "max 100000\n");
  cgroups.write("mounted/pod/cpu.max", "300000 100000\n");
  cgroups.write("mounted/pod/box/cpu.max", "800000 100000\n");
  CHECK(cgroups.cores("0::/pod/box\n") == 3);         // What is above limits too.
  CHECK(cgroups.cores("0::/pod/other/deep\n") == 3);  // Not all of the path is seen here.
  CHECK(cgroups.cores("0::/elsewhere\n") == INT_MAX);
  CHECK(cgroups.cores("0::/../../pod\n") == INT_MAX);
  CHECK(cgroups.cores("no colon\n0:\n\n0::\n") == INT_MAX);
}

TEST_CASE("cores: the quota of a cgroup, version 1 and both") {
  const Cgroups cgroups;
  const auto quota = [&](const std::string& at, const std::string& time) {
    cgroups.write("mounted/" + at + "/cpu.cfs_quota_us", time);
    cgroups.write("mounted/" + at + "/cpu.cfs_period_us", "50000\n");
  };
  quota("cpu,cpuacct/job", "-1\n");
  CHECK(cgroups.cores("4:cpu,cpuacct:/job\n") == INT_MAX);
  quota("cpu,cpuacct/job", "125000\n");
  CHECK(cgroups.cores("9:name=systemd:/job\n4:cpu,cpuacct:/job\n1:cpuset:/\n") == 3);
  CHECK(cgroups.cores("4:cpuset:/job\n") == INT_MAX);
  quota("cpu", "100000\n");
  CHECK(cgroups.cores("1:cpu:/docker/0123\n") == 2);  // The path of the host, where the container sees its own as the root.
  cgroups.write("mounted/cpu/cpu.cfs_period_us", "much\n");
  CHECK(cgroups.cores("1:cpu:/docker/0123\n") == INT_MAX);
  cgroups.write("mounted/unified/a/cpu.max", "400000 100000");
  CHECK(cgroups.cores("4:cpu,cpuacct:/job\n0::/a\n") == 3);
  CHECK(cgroups.cores("0::/a\n") == 4);
}

TEST_CASE("cores: never more than those of the affinity, and at least one") {
  CHECK(num_affinity_cores() >= 1);
  CHECK(num_quota_cores() >= 1);
  CHECK(num_usable_cores() == std::min(num_affinity_cores(), num_quota_cores()));
  CHECK(num_quota_cores("/none", "/none") == INT_MAX);
}

}  // namespace
}  // namespace cohort
