#pragma once
// Trainings of real workers that do not wait for one another: sync=async and stale:K. Rank 0 serves the model (model_server.h) in a thread
// of its own, and is a worker as well (served_worker.h), as all other ranks are.

#include "cohort/data/source.h"
#include "cohort/job/job.h"
#include "cohort/train/run/train_job.h"
#include "cohort/train/trainer.h"
#include "cohort/world/world.h"

namespace cohort {

/// Whether that is how `job` trains.
bool is_served(const Job& job);

/// This rank's part, as train() of train_job.h: what it returns is rank 0's; other ranks know of steps alone how many pushes they made.
/// Error(kEnvironment) on a rank whose rank 0 is gone.
TrainResult train_served(const Job& job, const DataSet& data, const World& world, const TrainOptions& options);

}  // namespace cohort
