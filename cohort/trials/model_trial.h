#pragma once
// Trials of a batch-size study with a model and data: the smallest loop that trains as `cohort train` does. Weights are one flat array, the
// data stands in memory once; a batch of several workers costs one all-reduce a step. How, and what it costs: model_trial.cpp.

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
  double snapshot_seconds =
      60;  ///< A trial with TrialOrder::snapshot saves itself so often. The caller removes the file of an ended trial.
  /// Asked after every step (Ctrl-C): true ends run() with kIncomplete, after a snapshot where the order names one. One rank's wish ends
  /// the team's trial. Empty: never.
  std::function<bool()> stop;
  /// Chains of linear layers and ReLU (the FC family) run by dense_chain.h instead of autograd: the same numbers within rounding.
  bool use_dense_chain = true;
};

/// `team`: the ranks that run each trial together (a group of one: this process alone); every rank of it makes a runner and calls it alike,
/// and hears the same outcome. `data` may be shared by any number of runners: made before ranks are forked it costs its memory once for
/// all. Sets LibTorch to one thread. Error(kBadInput) where the model can not be built; run() and measure() throw it where a batch size can
/// not be divided over the team, or a metaparameter has no meaning (a negative rate, a momentum of 1).
COHORT_PROGRAM_API std::unique_ptr<study::TrialRunner> make_model_runner(const study::StudySpec& spec,
                                                                         std::shared_ptr<const TrialData> data, const Group& team,
                                                                         const ModelRunnerOptions& options = {});
/// The same with samples of its own: reads them from `data` now.
COHORT_PROGRAM_API std::unique_ptr<study::TrialRunner> make_model_runner(const study::StudySpec& spec, const DataSet& data,
                                                                         const Group& team, const ModelRunnerOptions& options = {});

}  // namespace cohort
