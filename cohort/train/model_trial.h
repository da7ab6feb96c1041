#pragma once
// Trials of a batch-size study with a model and data: the smallest loop that trains as `cohort train` does. Weights and gradients are one
// flat array each, the data stands in memory once; a batch of several workers costs one all-reduce a step.

#include <memory>

#include "cohort/comm/group.h"
#include "cohort/data/source.h"
#include "cohort/study/spec.h"
#include "cohort/study/trial_runner.h"

namespace cohort {

/// `team`: the ranks that run each trial together (a group of one: this process alone); every rank of it makes a runner and calls it alike.
/// The data set must outlive the runner. Error(kBadInput) where the model can not be built, or a batch size can not be divided over the
/// team.
std::unique_ptr<study::TrialRunner> make_model_runner(const study::StudySpec& spec, const DataSet& data, const Group& team);

}  // namespace cohort
