#pragma once
// train() with the options that only the command line, verify and auto-tuning use.

#include "cohort/job/job.h"
#include "cohort/run/trainer.h"
#include "cohort/train/train_options.h"
#include "cohort/train/train_result.h"

namespace cohort {

/// As train() of trainer.h, for a job that check_job() has passed.
TrainResult train(const Job& job, const DataSet& data, const World& world, const TrainOptions& options = {});

}  // namespace cohort
