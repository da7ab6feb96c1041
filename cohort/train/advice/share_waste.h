#pragma once
// How much of their time the workers of a data-parallel run wait for the slowest of them: with the shares that they have, and with equal
// ones. No LibTorch header.
//
//   ShareWaste waste(equal at the start);
//   every step:                 waste.add_step(metrics, samples of this rank);
//   where shares change:        waste.new_shares(from_step);
//   at the end, on all ranks:   std::optional<WasteRecord> told = waste.tell(group, global_batch, planned);

#include <cstdint>
#include <optional>
#include <vector>

#include "cohort/record/advice_records.h"
#include "cohort/record/step_records.h"

namespace cohort {

class Group;

/// Totals of one rank over the steps of one set of shares.
struct ShareTimes {
  double steps = 0, samples = 0;
  double compute_seconds = 0;   ///< Forward and backward.
  double exchange_seconds = 0;  ///< Exposed: waiting for others among it.
  double step_seconds = 0;
};

/// Of equal shares, where a plan has forecast them.
struct PlannedWaste {
  double waste = kUnknown, step_seconds = kUnknown;
};

/// Share of the ranks' seconds that went into waiting for the slowest: what each waited beyond the rank that waited least, which had only
/// the exchange itself to wait for.
double measured_waste(const std::vector<ShareTimes>& ranks);

/// With equal shares of `global_batch` samples, from each rank's seconds for a sample: all wait for the slowest, and what a step takes
/// besides computing is what it takes the rank that waits least.
PlannedWaste waste_of_equal_shares(const std::vector<ShareTimes>& ranks, double global_batch);

class ShareWaste {
 public:
  /// Workers that are nearer to each other in speed than this, with equal shares, are not told of: a machine's noise is as large.
  static constexpr double kWorthTelling = 0.1;

  explicit ShareWaste(bool starts_equal) : starts_equal_(starts_equal) {}

  void add_step(const StepRecord& step, int64_t samples);
  void new_shares(int64_t from_step) { next_from_ = from_step; }

  /// None where shares were equal throughout and waste less than kWorthTelling, or where nothing was measured. Collective.
  std::optional<WasteRecord> tell(Group& group, int64_t global_batch, const PlannedWaste& planned) const;

 private:
  bool starts_equal_;
  int64_t next_from_ = -1;  ///< Other shares from this step on, counted from 1; -1: none are on their way.
  int64_t num_seen_ = 0;
  int num_changes_ = 0;
  ShareTimes first_, last_;  ///< Under the shares of the start, and under those of now.
};

/// What tell() says of the numbers of all ranks. `equal`: under equal shares, empty where there were none.
std::optional<WasteRecord> describe_waste(const std::vector<ShareTimes>& now, const std::vector<ShareTimes>& equal, bool changed,
                                          int64_t global_batch, const PlannedWaste& planned);

}  // namespace cohort
