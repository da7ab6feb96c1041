#pragma once
// The runner of a study's trials: of its model, or of the noisy quadratic.

#include <functional>
#include <memory>

#include "cohort/comm/group.h"
#include "cohort/study/search/trial_runner.h"
#include "cohort/trials/run_study.h"

namespace cohort {

/// `stop` is asked after every step of a model's trial; empty: never. Errors as make_model_runner's.
std::unique_ptr<study::TrialRunner> make_study_runner(const study::StudySpec& spec, const StudyWorkload& workload, const Group& team,
                                                      double snapshot_seconds, std::function<bool()> stop);

}  // namespace cohort
