#pragma once
// Shares of the global batch by measured speed, for ranks of unequal speed (--shares auto). No LibTorch header.
//
//   Balance balance(job.shares.of(size), units of a micro-step);
//   every step:                  balance.add_step(compute_seconds, samples of this rank);
//   every kStepsOfRound steps:   if (balance.update(gather_numbers(group, balance.seconds_per_sample(), ...)))
//                                  loader.set_weights(loader.first_free_step(), balance.weights());
//
// The gradient is the exact mean whatever the shares, since each loss is divided by the samples of the global batch.

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace cohort {

class Group;

/// Every rank's number, in rank order. Collective.
std::vector<double> gather_numbers(Group& group, double mine, const std::string& what);

/// All ranks hold the same weights, since update() gets the same numbers. One thread.
class Balance {
 public:
  static constexpr int kStepsOfRound = 20;   ///< Steps between calls of update().
  static constexpr int kWindow = 20;         ///< Steps of the median, so that one slow step changes nothing.
  static constexpr double kDeadBand = 0.05;  ///< Weights change only if that saves more of the compute time.
  static constexpr double kDamping = 0.7;    ///< Part of the way to the target in one round.
  static constexpr int kRoundsToProbe = 10;  ///< A rank without samples gets one unit again after this many rounds.

  /// `num_units`: units of the loader's granularity in a micro-step of all ranks. `weights` as for shares_of_batch().
  Balance(std::vector<double> weights, int64_t num_units);

  /// Forward and backward seconds of a step on this rank, without waiting. A step without samples drops the oldest measurement.
  void add_step(double compute_seconds, int64_t samples);
  /// The median of this rank's last kWindow steps; 0: none.
  double seconds_per_sample() const;
  /// `seconds_per_sample` of all ranks in rank order; 0: unknown, so the last known one is used. True if weights() changed.
  /// Error(kBadInput) for another number of ranks or a number that is negative or not finite.
  bool update(const std::vector<double>& seconds_per_sample);
  /// Their sum is 1.
  const std::vector<double>& weights() const { return weights_; }

 private:
  std::vector<double> target() const;
  double slowest_seconds(const std::vector<double>& weights) const;
  bool probe();

  std::vector<double> weights_;
  int64_t num_units_;
  std::deque<double> window_;
  std::vector<double> seconds_;     // By rank, for one sample; 0: unknown.
  std::vector<int> silent_rounds_;  // By rank: rounds in a row without a measurement.
};

}  // namespace cohort
