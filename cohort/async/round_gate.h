#pragma once
// When an exchange of workers that train by themselves takes place: with a quorum of them, and the others as far as they come within a
// grace time. Torch-free; knows no clock.

#include <limits>

namespace cohort {

/// A value.
class RoundGate {
 public:
  /// `quorum`: from 1.
  RoundGate(int quorum, double grace_seconds) : quorum_(quorum), grace_seconds_(grace_seconds) {}

  /// One more has handed over.
  void add(double now) {
    if (++num_there_ == quorum_) complete_since_ = now;
  }
  /// The exchange was made.
  void clear() { *this = RoundGate(quorum_, grace_seconds_); }

  /// Whether it takes place now; `others_come`: somebody else is on the way. With nobody on the way those that are there suffice, so that
  /// lost workers stop nobody.
  bool opens(double now, bool others_come) const {
    if (num_there_ == 0) return false;
    return !others_come || (num_there_ >= quorum_ && seconds_left(now) <= 0);
  }
  /// Until the grace time is over; infinite without the quorum.
  double seconds_left(double now) const {
    if (num_there_ < quorum_) return std::numeric_limits<double>::infinity();
    return complete_since_ + grace_seconds_ - now;
  }

  double complete_since() const { return complete_since_; }
  void restore(int num_there, double complete_since) { num_there_ = num_there, complete_since_ = complete_since; }

 private:
  int quorum_, num_there_ = 0;
  double grace_seconds_, complete_since_ = 0;
};

}  // namespace cohort
