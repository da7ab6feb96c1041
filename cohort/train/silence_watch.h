#pragma once
// Whether a worker has said nothing for longer than is usual for it. Torch-free; times in seconds of any one clock.

#include <optional>

namespace cohort {

class SilenceWatch {
 public:
  /// Nothing is remarked before `least_seconds`.
  explicit SilenceWatch(double least_seconds) : least_seconds_(least_seconds) {}

  /// From now on something is expected.
  void begin(double now);
  void heard(double now);
  /// The length of the silence, when it is time to remark on it: once it is several times the usual, then at each doubling.
  std::optional<double> overdue(double now);
  /// Running mean of the times between messages; -1 while unknown.
  double usual_seconds() const { return usual_seconds_; }

 private:
  double least_seconds_, usual_seconds_ = -1, heard_at_ = 0, remarked_seconds_ = 0;
};

}  // namespace cohort
