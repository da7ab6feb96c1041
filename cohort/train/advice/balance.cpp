// Shares by measured speed.
//
// One round, on every rank alike:
//   1. each rank's seconds per sample, the median of its last steps, are gathered (8 bytes a rank);
//   2. the target is proportional to speed, 1 / seconds. The seconds include fixed costs of a step, so the target moves with the shares; at
//      its fixed point all ranks take equally long;
//   3. every rank gets at least one unit of samples, except one with less than 1 / (8 p) of the total speed, which gets none: others would
//      wait even for a single unit;
//   4. weights move part of the way, and only if whole units by the target would save more than the dead band, so that noise and the
//      rounding to units change nothing.
//
// Source: the iteration is dynamic load balancing by measured time (e.g. Clarke, Lastovetsky, Rychkov 2011, "Dynamic load balancing of
// parallel computational iterative routines on highly heterogeneous HPC platforms", PPL 21:2). Difference: median, dead band and floor.
#include "cohort/train/advice/balance.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cohort/base/fail.h"
#include "cohort/base/statistics.h"
#include "cohort/base/text/text.h"
#include "cohort/comm/group.h"
#include "cohort/data/sampler.h"

namespace cohort {
namespace {

constexpr double kNothing = 1e-9;  // A weight too small for any unit.

void normalise(std::vector<double>& weights) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) weight /= total;
}

}  // namespace

std::vector<double> gather_numbers(Group& group, double mine, const std::string& what) {
  const at::Tensor all = at::empty({group.size(), 1}, at::kDouble), one = at::full({1}, mine, at::kDouble);
  if (group.size() == 1) return {mine};
  group.all_gather(all, one, what);
  return {all.data_ptr<double>(), all.data_ptr<double>() + all.numel()};
}

Balance::Balance(std::vector<double> weights, int64_t num_units)
    : weights_(std::move(weights)), num_units_(num_units), seconds_(weights_.size(), 0.0), silent_rounds_(weights_.size(), 0) {
  shares_of_batch(num_units, weights_);  // Checks the weights.
  normalise(weights_);
}

void Balance::add_step(double compute_seconds, int64_t samples) {
  if (samples <= 0) {
    if (!window_.empty()) window_.pop_front();
    return;
  }
  window_.push_back(compute_seconds / static_cast<double>(samples));
  if (window_.size() > kWindow) window_.pop_front();
}

double Balance::seconds_per_sample() const { return median({window_.begin(), window_.end()}); }

/// Weights proportional to speed, with a floor of one unit.
std::vector<double> Balance::target() const {
  std::vector<double> out;
  for (const double seconds : seconds_) out.push_back(1 / seconds);
  normalise(out);
  const double num_ranks = static_cast<double>(out.size());
  if (static_cast<double>(num_units_) < num_ranks) return out;
  const double floor = (1 + 1e-6) / static_cast<double>(num_units_), hopeless = 1 / (8 * num_ranks);
  for (double& weight : out)
    if (weight < floor && weight < hopeless) weight = kNothing;
  std::vector<bool> raised(out.size(), false);
  // Raising one rank lowers the others, of which the next may then be below the floor.
  for (bool again = true; again;) {
    again = false;
    double fixed = 0, free = 0;
    for (size_t rank = 0; rank < out.size(); ++rank) {
      if (!raised[rank] && out[rank] < floor && out[rank] > 2 * kNothing) raised[rank] = again = true;
      if (raised[rank]) out[rank] = floor;
      (raised[rank] ? fixed : free) += out[rank];
    }
    for (size_t rank = 0; rank < out.size(); ++rank)
      if (!raised[rank]) out[rank] *= (1 - fixed) / free;
  }
  return out;
}

/// The compute time of the slowest rank with whole units.
double Balance::slowest_seconds(const std::vector<double>& weights) const {
  const std::vector<Share> shares = shares_of_batch(num_units_, weights);
  double slowest = 0;
  for (size_t rank = 0; rank < shares.size(); ++rank)
    slowest = std::max(slowest, static_cast<double>(shares[rank].size()) * seconds_[rank]);
  return slowest;
}

/// Gives ranks that had no samples for long one unit, to measure them again. True if there was one.
bool Balance::probe() {
  bool found = false;
  const double unit = (1 + 1e-6) / static_cast<double>(num_units_);
  for (size_t rank = 0; rank < weights_.size(); ++rank) {
    if (silent_rounds_[rank] < kRoundsToProbe) continue;
    silent_rounds_[rank] = 0;
    if (weights_[rank] >= unit) continue;
    const double factor = (1 - unit) / (1 - weights_[rank]);
    for (double& weight : weights_) weight *= factor;
    weights_[rank] = unit;
    found = true;
  }
  return found;
}

bool Balance::update(const std::vector<double>& seconds_per_sample) {
  if (seconds_per_sample.size() != weights_.size())
    fail(ErrorCode::kBadInput, "balance: ", seconds_per_sample.size(), " measurements for ", weights_.size(), " ranks");
  for (size_t rank = 0; rank < weights_.size(); ++rank) {
    const double seconds = seconds_per_sample[rank];
    if (!(seconds >= 0) || !std::isfinite(seconds))
      fail(ErrorCode::kBadInput, "balance: rank ", rank, " measured ", seconds, " seconds a sample");
    if (seconds > 0) seconds_[rank] = seconds;
    silent_rounds_[rank] = seconds > 0 ? 0 : silent_rounds_[rank] + 1;
  }
  if (std::ranges::count(seconds_, 0.0) > 0) return false;  // A rank has not had a sample yet.
  if (probe()) return true;
  const std::vector<double> wanted = target();
  if (slowest_seconds(wanted) > (1 - kDeadBand) * slowest_seconds(weights_)) return false;
  for (size_t rank = 0; rank < weights_.size(); ++rank) weights_[rank] += kDamping * (wanted[rank] - weights_[rank]);
  normalise(weights_);
  return true;
}

}  // namespace cohort
