#pragma once
// Shares of the global batch by measured speed, for workers that are not equally fast. No LibTorch header.
//
//   Balance balance(job.shares.of(size), units of a micro-step);
//   every step:                      balance.add_step(compute_seconds, samples of this rank);
//   every kStepsOfRound steps:       if (job.shares.automatic && balance.update(gather_numbers(group, balance.seconds_per_sample(), ...)))
//                                      loader.set_weights(loader.first_free_step(), balance.weights());
//
// The gradient stays the exact mean whatever the shares: each loss is divided by the samples of the whole global batch.

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace cohort {

class Group;

/// Every rank's number, in rank order. Collective.
std::vector<double> gather_numbers(Group& group, double mine, const std::string& what);

/// One a rank. Given the same numbers in update(), all ranks hold the same weights. One thread.
class Balance {
 public:
  static constexpr int kStepsOfRound = 20;   ///< How often to call update().
  static constexpr int kWindow = 20;         ///< Steps whose median counts, so that one hiccup changes nothing.
  static constexpr double kDeadBand = 0.05;  ///< Weights stay unless new ones promise to save more of the compute time.
  static constexpr double kDamping = 0.7;    ///< How far weights go towards what was measured, in one round.
  static constexpr int kRoundsToProbe = 10;  ///< A rank that was too slow for any sample gets one unit again after this number of rounds.

  /// `num_units`: how many units of the loader's granularity a micro-step of all ranks has. Weights as for shares_of_batch.
  Balance(std::vector<double> weights, int64_t num_units);

  /// This rank's work of one step: forward and backward, without waiting for others. A step without samples takes
  /// the oldest measurement away: what is not seen any more is forgotten.
  void add_step(double compute_seconds, int64_t samples);
  /// Median of this rank's last kWindow steps; 0 where none is left.
  double seconds_per_sample() const;
  /// `seconds_per_sample` of all ranks in rank order; 0: not known, the number of an earlier round stands. True when weights() changed.
  /// Error(kBadInput) for another number of ranks or a number that is negative or not finite.
  bool update(const std::vector<double>& seconds_per_sample);
  /// They add up to 1.
  const std::vector<double>& weights() const { return weights_; }

 private:
  std::vector<double> target() const;
  double slowest_seconds(const std::vector<double>& weights) const;
  bool probe();

  std::vector<double> weights_;
  int64_t num_units_;
  std::deque<double> window_;
  std::vector<double> seconds_;     ///< By rank, for one sample; 0 until known.
  std::vector<int> silent_rounds_;  ///< By rank: rounds in a row without a number.
};

}  // namespace cohort
