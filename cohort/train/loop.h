#pragma once
// The loop of a training whose ranks are in step.

#include "cohort/train/run_reporter.h"
#include "cohort/train/run_saver.h"
#include "cohort/train/run_setup.h"
#include "cohort/train/train_result.h"

namespace cohort {

/// From the step that `saver` read to the end. Collective. Errors as train() of trainer.h has them.
TrainResult train_in_step(RunSetup& run, RunSaver& saver, RunReporter& reporter);

}  // namespace cohort
