#pragma once
// What is asked of all measurements of a trial, also where only some of them are in memory (archive/kept_measurements.h).

#include "cohort/study/spec/data.h"

namespace cohort::study {

int64_t num_measurements(const Trial& trial);
/// Those with a value at any measurement.
MetricSet measured_in(const Trial& trial);

/// `step` is that of a measurement at which some metric was better than ever before: how many evaluations after step 0 there are up to and
/// with it, and the evaluated step before it, 0 where there is none.
int64_t num_evaluations(const Trial& trial, int64_t step);
int64_t step_before(const Trial& trial, int64_t step);

/// Error(kFailed) where measurements were left out that a question about this metric needs: nothing may be answered from the rest.
void check_kept(const Trial& trial, Metric metric);

}  // namespace cohort::study
