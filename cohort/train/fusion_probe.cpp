#include "cohort/train/fusion_probe.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "cohort/base/cpu_time.h"
#include "cohort/base/statistics.h"
#include "cohort/train/fused_trials.h"
#include "cohort/train/trial_step.h"

namespace cohort {
FusionProbe probe_fusion(const study::StudySpec& spec, const TrialData& data, int64_t batch_size, int64_t num_trials) {
  constexpr int kWarmUp = 2, kRounds = 5, kMostSteps = 50;
  constexpr double kSecondsOfRound = 0.03;
  FusionProbe probe{.num_trials = num_trials, .fused_seconds = std::numeric_limits<double>::infinity()};
  std::vector<study::TrialOrder> orders;
  for (int64_t i = 0; i < num_trials; ++i)
    orders.push_back(
        {.batch_size = batch_size, .id = i, .train_steps = 1, .parameters = {{"learning_rate", 1e-6}}, .seed = static_cast<uint64_t>(i)});
  const auto model = build_trial_model(spec, data.train.shape(), 0);
  std::optional<FusedTrials> fused;
  if (FusedTrials::can_fuse(*model)) fused.emplace(spec, data, orders);
  TrialStep unfused(data, Group(), {});
  unfused.begin(model, trial_schedule(spec, orders[0].parameters, 1), batch_size, 0);
  int64_t number = 0;
  const auto one_step = [&] {
    unfused.compute(number, false);
    unfused.update(number++);
  };
  // A round of each in turn, so that both see the same disturbances.
  // Of this thread: the machine may have other work.
  const auto seconds_of = [&](int steps, const auto& step) {
    const double start = thread_cpu_seconds();
    for (int i = 0; i < steps; ++i) step();
    return (thread_cpu_seconds() - start) / steps;
  };
  const auto steps_for = [&](double seconds) { return std::clamp(static_cast<int>(kSecondsOfRound / seconds), 1, kMostSteps); };
  const auto fused_step = [&] { fused->step(); };
  seconds_of(kWarmUp, one_step);
  const int unfused_steps = steps_for(seconds_of(kWarmUp, one_step));
  if (fused) seconds_of(kWarmUp, fused_step);
  const int fused_steps = fused ? steps_for(seconds_of(kWarmUp, fused_step)) : 0;
  std::vector<double> with, without;
  for (int round = 0; round < kRounds; ++round) {
    without.push_back(seconds_of(unfused_steps, one_step));
    if (fused) with.push_back(seconds_of(fused_steps, fused_step) / static_cast<double>(num_trials));
  }
  probe.unfused_seconds = median(without);
  if (fused) probe.fused_seconds = median(with);
  return probe;
}

}  // namespace cohort
