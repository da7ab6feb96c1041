#pragma once
// --layout auto: measures the model here, plans, and where two plans are too close to tell lets them run some steps.

#include <string>
#include <vector>

#include "cohort/base/text/json.h"
#include "cohort/data/source.h"
#include "cohort/job/config.h"
#include "cohort/plan/plan.h"
#include "cohort/record/fields.h"
#include "cohort/world/world.h"

namespace cohort {

/// What a plan of `config` asks: its batch, optimizer, memory limit and precision, its --accumulate where that was given; without cluster.
SearchRequest measured_request(const Config& config, const ModelProfile& profile);

/// 1, 2, 4, ... and `most`: the numbers of workers that are measured where at most so many may be chosen.
std::vector<int> numbers_of_workers(int most);

struct AutoLayout {
  Config config;  ///< With the layout, its workers, precision and accumulate.
  Json plan;      ///< plan.json.
  double predicted_step_seconds = 0;
  double predicted_equal_waste = kUnknown;  ///< Where workers are not equally fast: UnevenForecast's.
  double predicted_equal_step_seconds = kUnknown;
  std::vector<std::string> sentences;  ///< What was chosen and why, for people.
};

/// For at most config.workers ranks (0: 1) of this host, forked by run_ranks. The process must have one thread. Error as train(): kBadInput
/// for a model that can not be measured, kInfeasible where nothing fits.
AutoLayout choose_layout(const Config& config, const DataSet& data, bool shows_progress);

/// Under a launcher: for exactly the ranks that there are, which all call it, before they make any other group. The same answer on all.
AutoLayout choose_layout_together(const Config& config, const DataSet& data, const World& world);

}  // namespace cohort
