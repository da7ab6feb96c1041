#pragma once
// Trials of a batch-size study with a model and data: the smallest loop that trains as `cohort train` does. Weights are one flat array, the
// data is in memory once; a batch of several workers costs one all-reduce per step.

#include <cstdint>
#include <functional>
#include <memory>

#include "cohort/base/export.h"
#include "cohort/comm/group.h"
#include "cohort/data/source/source.h"
#include "cohort/study/search/trial_runner.h"
#include "cohort/study/spec/spec.h"
#include "cohort/trials/trial_data.h"

namespace cohort {

struct ModelRunnerOptions {
  /// Interval of saving to TrialOrder::snapshot. The caller removes the file of an ended trial.
  double snapshot_seconds = 60;
  /// Called after every step; true on any rank ends run() on the whole team with kIncomplete, after a snapshot where the order names one.
  /// May be empty.
  std::function<bool()> stop;
  /// Chains of linear layers and ReLU (the FC family) run by dense_chain.h instead of autograd: the same numbers within rounding.
  bool use_dense_chain = true;
};

/// `team`: the ranks that run each trial together (by default this process alone); every rank makes a runner, calls it alike and gets the
/// same outcome. `data` may be shared by any number of runners, and by ranks that are forked later. Sets LibTorch to one thread.
/// Error(kBadInput) where the model cannot be built; run() and measure() throw it where a batch size cannot be divided over the team, or a
/// hyperparameter is out of range (a negative rate, a momentum of 1).
COHORT_PROGRAM_API std::unique_ptr<study::TrialRunner> make_model_runner(const study::StudySpec& spec,
                                                                         std::shared_ptr<const TrialData> data, const Group& team,
                                                                         const ModelRunnerOptions& options = {});
/// Reads the samples from `data` first.
COHORT_PROGRAM_API std::unique_ptr<study::TrialRunner> make_model_runner(const study::StudySpec& spec, const DataSet& data,
                                                                         const Group& team, const ModelRunnerOptions& options = {});

}  // namespace cohort
