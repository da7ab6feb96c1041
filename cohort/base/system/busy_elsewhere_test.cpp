#include "cohort/base/system/busy_elsewhere.h"

#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <doctest/doctest.h>
#include <chrono>
#include <cmath>
#include <fstream>
#include <thread>

#include "cohort/base/clock.h"
#include "cohort/base/files/file.h"
#include "cohort/base/system/machine.h"

namespace cohort {
namespace {

void sleep_seconds(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

/// One core's line of /proc/stat, of a core that this process may use.
std::string line_of_core(int64_t user, int64_t idle, int64_t steal) {
  return "cpu 1 2 3\ncpu" + std::to_string(::sched_getcpu()) + " " + std::to_string(user) + " 0 0 " + std::to_string(idle) + " 7 0 0 " +
         std::to_string(steal) + " 0 0\nintr 17\n";
}

TEST_CASE("busy elsewhere: another program that computes is counted") {
  const BusyElsewhere busy;
  if (!busy.cores() && !std::ifstream("/proc/stat")) return;
  const pid_t child = ::fork();
  if (child == 0)
    for (;;) process_cpu_seconds();
  sleep_seconds(0.8);
  const std::optional<double> cores = busy.cores();
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  REQUIRE(cores);
  CHECK(*cores > 0.3);
}

TEST_CASE("busy elsewhere: what is busy or stolen, less what this process and its children did") {
  const TemporaryFolder folder;
  const std::string stat = folder / "stat";
  const auto write = [&](const std::string& text) { std::ofstream(stat) << text; };
  write(line_of_core(1000, 500, 10));
  const BusyElsewhere busy(stat);
  CHECK_FALSE(busy.cores());  // Too soon.
  const double began = steady_seconds();
  sleep_seconds(0.3);
  CHECK(busy.cores() == 0);
  CHECK(busy.remark(num_affinity_cores()).empty());
  const double cpu_began = process_cpu_seconds();
  while (process_cpu_seconds() < cpu_began + 0.5) {
  }
  const double busy_seconds = 0.5 + 1.5 * (steady_seconds() - began), hertz = static_cast<double>(::sysconf(_SC_CLK_TCK));
  write(line_of_core(1000 + static_cast<int64_t>(busy_seconds * hertz * 2 / 3), 900, 10 + static_cast<int64_t>(busy_seconds * hertz / 3)));
  const std::optional<double> cores = busy.cores();
  REQUIRE(cores);
  CHECK(*cores == doctest::Approx((busy_seconds - 0.5) / (steady_seconds() - began)).epsilon(0.1));
  // Who measures with all cores is told; who would have had room beside them is not.
  CHECK(busy.remark(num_affinity_cores()).starts_with("other programs kept "));
  CHECK(busy.remark(num_affinity_cores() - static_cast<int>(std::ceil(*cores))).empty());
}

TEST_CASE("busy elsewhere: a file that says nothing gives no number") {
  const TemporaryFolder folder;
  for (const char* text : {"", "cpu 1 2 3", "cpux 1 2", "cpu0 a b", "cpu0 -5 1", "cpu99999999 1 2", "cpu99999999999999999999 1"}) {
    CAPTURE(text);
    std::ofstream(folder / "stat") << text;
    const BusyElsewhere busy(folder / "stat");
    sleep_seconds(0.21);
    CHECK_FALSE(busy.cores());
    CHECK(busy.remark(num_affinity_cores()).empty());
  }
  CHECK_FALSE(BusyElsewhere(folder / "none").cores());
}

}  // namespace
}  // namespace cohort
