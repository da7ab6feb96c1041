#include "cohort/train/silence_watch.h"

#include <algorithm>

namespace cohort {
namespace {
constexpr double kPatience = 5;     ///< Times the usual.
constexpr double kNewShare = 0.25;  ///< Of the latest interval in the mean.
}  // namespace

void SilenceWatch::begin(double now) {
  heard_at_ = now;
  remarked_seconds_ = 0;
}

void SilenceWatch::heard(double now) {
  const double seconds = now - heard_at_;
  // A silence that was remarked on is not usual.
  if (remarked_seconds_ == 0) usual_seconds_ = usual_seconds_ < 0 ? seconds : (1 - kNewShare) * usual_seconds_ + kNewShare * seconds;
  begin(now);
}

std::optional<double> SilenceWatch::overdue(double now) {
  const double seconds = now - heard_at_;
  // What has never spoken may need long for its first words.
  const double patience = usual_seconds_ < 0 ? kPatience * least_seconds_ : std::max(least_seconds_, kPatience * usual_seconds_);
  if (seconds < std::max(patience, 2 * remarked_seconds_)) return std::nullopt;
  remarked_seconds_ = seconds;
  return seconds;
}

}  // namespace cohort
