#include "cohort/study/analysis/measured_metrics.h"

#include <algorithm>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/study/analysis/course.h"

namespace cohort::study {

std::vector<Metric> measured_metrics(const StudyData& study) {
  MetricSet is_measured;
  for (const BatchStudy& batch : study.batches)
    for (const Trial& trial : batch.trials) is_measured |= measured_in(trial);
  std::vector<Metric> metrics;
  for (size_t metric = 0; metric < kNumMetrics; ++metric)
    if (is_measured[metric]) metrics.push_back(static_cast<Metric>(metric));
  return metrics;
}

bool may_answer(const StudyData& study, const GoalSpec& goal) {
  const std::vector<Metric> measured = measured_metrics(study);
  return measured.empty() || std::find(measured.begin(), measured.end(), goal.metric) != measured.end();
}

void check_is_measured(const StudyData& study, const GoalSpec& goal) {
  if (may_answer(study, goal)) return;
  std::vector<std::string> names;
  for (const Metric metric : measured_metrics(study)) names.emplace_back(name_of(metric));
  fail(ErrorCode::kBadInput, "goal ", goal.text(), ": this study does not measure ", name_of(goal.metric),
       "; measured: ", join(names, ", "));
}

}  // namespace cohort::study
