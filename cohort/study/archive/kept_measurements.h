#pragma once
// Which measurements of an archive's trials are kept in memory.

#include <array>
#include <vector>

#include "cohort/study/spec/data.h"

namespace cohort::study {

/// All of them, or only those that can answer a question about these metrics; of none: no measurement at all, but what they were
/// (WholeCourse).
struct Keep {
  bool all = true;
  MetricSet metrics;
};

/// Takes the measurements of one trial as they are read, and keeps the records: those at which a metric was better than at any before.
/// Cost: 96 bytes a kept measurement. The first and the last are kept too.
///
/// Why that is exact. Which step reaches a goal first, and the best value within a budget, are a record each, whatever the goal and the
/// budget; what another metric has there stands in the same measurement, and how many evaluations there were until then and which was the
/// one before stand beside it. Whether the untrained model is at the goal is asked of the first, how long a trial was watched of the last.
/// Nothing asks for a value that is no record.
class RecordKeeper {
 public:
  explicit RecordKeeper(MetricSet metrics) : metrics_(metrics) { whole_.kept = metrics; }
  /// Steps rise.
  void add(const Measurement& measurement);
  void put_into(Trial& trial);

 private:
  void keep(const Measurement& measurement, const WholeCourse::Place& place);

  MetricSet metrics_;
  std::array<double, kNumMetrics> best_{};
  MetricSet has_best_;
  std::vector<Measurement> kept_;
  WholeCourse whole_;
  Measurement last_;
  WholeCourse::Place last_place_;
  bool last_is_kept_ = true;
};

}  // namespace cohort::study
