#include "cohort/study/archive/kept_measurements.h"

#include <cmath>
#include <utility>

namespace cohort::study {

void RecordKeeper::keep(const Measurement& measurement, const WholeCourse::Place& place) {
  kept_.push_back(measurement);
  whole_.places.push_back(place);
}

void RecordKeeper::add(const Measurement& measurement) {
  const bool is_first = whole_.num_measurements++ == 0;
  bool is_record = is_first && metrics_.any();
  for (int metric = 0; metric < kNumMetrics; ++metric) {
    const double value = measurement.values[metric];
    if (std::isnan(value)) continue;
    whole_.measured.set(metric);
    if (!metrics_[metric]) continue;
    const bool is_higher = higher_is_better(static_cast<Metric>(metric));
    if (has_best_[metric] && !(is_higher ? value > best_[metric] : value < best_[metric])) continue;
    has_best_.set(metric);
    best_[metric] = value;
    is_record = true;
  }
  const WholeCourse::Place place = {.number = last_place_.number + (measurement.step > 0), .step_before = is_first ? 0 : last_.step};
  if (is_record) keep(measurement, place);
  last_ = measurement;
  last_place_ = place;
  last_is_kept_ = is_record || metrics_.none();
}

void RecordKeeper::put_into(Trial& trial) {
  if (!last_is_kept_) keep(last_, last_place_);
  trial.measurements = std::vector<Measurement>(kept_.begin(), kept_.end());  // Without spare room.
  whole_.places.shrink_to_fit();
  trial.whole = std::move(whole_);
}

}  // namespace cohort::study
