#include "cohort/train/step/local_round.h"

namespace cohort {
namespace {

constexpr double StepRecord::* kTimes[] = {&StepRecord::step_seconds, &StepRecord::data_seconds, &StepRecord::compute_seconds,
                                           &StepRecord::exchange_seconds, &StepRecord::optimizer_seconds};

}  // namespace

void LocalRound::add_loss(double loss, int64_t own_samples, int64_t all_samples) {
  if (own_samples > 0) loss_sum_ += loss * static_cast<double>(own_samples);
  own_samples_ += own_samples;
  all_samples_ += all_samples;
}

void LocalRound::add(const StepRecord& step) {
  StepRecord sum = step;
  if (num_steps_ > 0)
    for (double StepRecord::* const time : kTimes) sum.*time += sum_.*time;
  sum_ = sum;
  ++num_steps_;
}

LocalRound::Total LocalRound::take() {
  Total total{.mean = sum_, .num_steps = num_steps_, .own_samples = own_samples_};
  total.mean.samples_per_second = static_cast<double>(all_samples_) / sum_.step_seconds;
  for (double StepRecord::* const time : kTimes) total.mean.*time /= static_cast<double>(num_steps_);
  *this = LocalRound();
  return total;
}

}  // namespace cohort
