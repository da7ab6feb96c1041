#pragma once
// Which of the ranks that measured the same thing side by side are equally fast. No LibTorch header.

#include <vector>

namespace cohort {

/// `seconds` are [rank][size][round]: of one pass over the model, in rounds that all ranks begin together.
class SpeedClasses {
 public:
  static constexpr double kSlower = 1.1;       ///< A rank is slower than another that takes so many times its seconds
  static constexpr double kMostRounds = 0.75;  ///< in this share of the rounds: a hiccup is in one of them, a slow core in all.

  explicit SpeedClasses(const std::vector<std::vector<std::vector<double>>>& seconds);

  int num_classes() const { return static_cast<int>(first_rank_.size()); }
  /// One a rank; class 0 is that of rank 0, the others follow in rank order.
  const std::vector<int>& of_rank() const { return of_rank_; }
  /// The rank whose figures are its class's.
  int rank_of(int speed_class) const { return first_rank_[static_cast<size_t>(speed_class)]; }
  /// How many times as long as the fastest rank it takes.
  double times_slower(int speed_class) const { return times_slower_[static_cast<size_t>(speed_class)]; }

 private:
  std::vector<int> of_rank_, first_rank_;
  std::vector<double> times_slower_;
};

}  // namespace cohort
