// Of each core's line in /proc/stat the fields are ticks spent in user, nice, system, idle, iowait, irq, softirq, steal (proc(5)); guests'
// are in user already. Own time is getrusage's, of this process and of children that have ended and were waited for.
#include "cohort/base/system/busy_elsewhere.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <utility>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/system/machine.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

constexpr double kLeastSeconds = 0.2;
constexpr double kReportedCores = 0.25, kReportedShare = 0.05;
constexpr int kIdle = 3, kIoWait = 4, kSteal = 7;

double own_seconds(int who) {
  rusage usage{};
  ::getrusage(who, &usage);
  const auto seconds = [](const timeval& time) { return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec); };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// The busy ticks of a line of /proc/stat; nullopt where it is not one of a core that this process may use.
std::optional<int64_t> busy_ticks(const std::string& line, const cpu_set_t& usable) {
  std::istringstream words(line);
  std::string name;
  words >> name;
  if (!name.starts_with("cpu")) return std::nullopt;
  const std::optional<int64_t> core = parse_integer(name.substr(3));
  if (!core || *core < 0 || *core >= CPU_SETSIZE || !CPU_ISSET(static_cast<size_t>(*core), &usable)) return std::nullopt;
  int64_t busy = 0;
  std::string word;
  for (int field = 0; field <= kSteal && words >> word; ++field) {
    const std::optional<int64_t> ticks = parse_integer(word);
    if (!ticks || *ticks < 0) return std::nullopt;
    if (field != kIdle && field != kIoWait) busy += *ticks;
  }
  return busy;
}

}  // namespace

BusyElsewhere::BusyElsewhere(std::string stat) : stat_(std::move(stat)), began_(read()) {}

std::optional<BusyElsewhere::Seconds> BusyElsewhere::read() const {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  std::ifstream file(stat_);
  if (!file || ::sched_getaffinity(0, sizeof usable, &usable) != 0)
    return std::nullopt;  // Also on machines with more than CPU_SETSIZE cores.
  bool is_any = false;
  int64_t ticks = 0;
  for (std::string line; std::getline(file, line);)
    if (const std::optional<int64_t> busy = busy_ticks(line, usable)) ticks += *busy, is_any = true;
  if (!is_any) return std::nullopt;
  return Seconds{.wall = steady_seconds(),
                 .busy = static_cast<double>(ticks) / static_cast<double>(::sysconf(_SC_CLK_TCK)),
                 .own = own_seconds(RUSAGE_SELF) + own_seconds(RUSAGE_CHILDREN)};
}

std::optional<double> BusyElsewhere::cores() const {
  const std::optional<Seconds> now = read();
  if (!now || !began_ || now->wall - began_->wall < kLeastSeconds) return std::nullopt;
  return std::max(0.0, ((now->busy - began_->busy) - (now->own - began_->own)) / (now->wall - began_->wall));
}

std::string BusyElsewhere::remark(int wanted_cores) const {
  const std::optional<double> taken = cores();
  const int all = num_affinity_cores();
  if (!taken || all - *taken > wanted_cores - std::max(kReportedCores, kReportedShare * wanted_cores)) return "";
  return concat("other programs kept ", std::round(10 * *taken) / 10, " of ", all, all == 1 ? " core" : " cores", " busy meanwhile");
}

}  // namespace cohort
