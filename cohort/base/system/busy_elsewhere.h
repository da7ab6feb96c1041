#pragma once
// What other programs take of the cores that this process may use, while something is measured.

#include <optional>
#include <string>

namespace cohort {

/// One thread. What is said is always of the time since the constructor.
class BusyElsewhere {
 public:
  /// `stat`: a file of the format of /proc/stat.
  explicit BusyElsewhere(std::string stat = "/proc/stat");

  /// The mean number of cores of this process's affinity that were busy, stolen by a hypervisor included, with neither this process nor a
  /// child that it has waited for. None where the file says nothing, and before 0.2 s have passed: the kernel counts in hundredths.
  std::optional<double> cores() const;

  /// "other programs kept 1.4 of 2 cores busy meanwhile", where they left fewer than the `wanted_cores` that were measured with, by a
  /// quarter of a core and by a twentieth of them; else empty.
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
