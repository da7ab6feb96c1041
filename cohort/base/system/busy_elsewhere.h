#pragma once
// How many cores other programs keep busy during a measurement.

#include <optional>
#include <string>

namespace cohort {

/// All values cover the time since construction. One thread.
class BusyElsewhere {
 public:
  /// `stat`: a file of the format of /proc/stat.
  explicit BusyElsewhere(std::string stat = "/proc/stat");

  /// The mean number of cores of this process's affinity that were busy (or stolen by a hypervisor) with other processes than this one and
  /// its reaped children. Nullopt where the file is unavailable, and in the first 0.2 s: the kernel counts in hundredths of a second.
  std::optional<double> cores() const;

  /// "other programs kept 1.4 of 2 cores busy meanwhile" where fewer than `wanted_cores` were free, by at least a quarter of a core and by
  /// 5 %; else empty.
  std::string remark(int wanted_cores) const;

 private:
  struct Seconds {
    double wall = 0, busy = 0, own = 0;
  };
  std::optional<Seconds> read() const;

  std::string stat_;
  std::optional<Seconds> began_;
};

}  // namespace cohort
