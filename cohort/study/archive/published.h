#pragma once
// What Shallue et al. (2019) say of their own workloads and their archive does not: which trials count, how many samples train, what is to
// be reached. Text, figures 1 to 6, and the authors' notebook.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/study/spec/data.h"

namespace cohort::study {

/// 50 or 100, by the three names of the workload.
int64_t published_num_trials(const StudyData& study);

/// 0 where unknown.
int64_t published_num_train_samples(const std::string& dataset);

/// The goal of figure 1, then those that the workload has beside others (models, subsets); empty for other workloads than theirs.
std::vector<GoalSpec> published_goals(const std::string& dataset, const std::string& model);

}  // namespace cohort::study
