#pragma once
// One training run on one rank of the job: by synchronous ranks, asynchronous workers (async/served/) or simulated ones (async/simulated/).

#include "cohort/base/export.h"
#include "cohort/data/source/source.h"
#include "cohort/job/config.h"
#include "cohort/train/train_result.h"
#include "cohort/world/world.h"

namespace cohort {

/// Trains as `config` says, into runs/MODEL-YYYYMMDD-HHMMSS if config.run is empty. Every rank of `world` calls it with the same
/// configuration and data. Rank 0 writes the run folder and, with config.json, the lines of stdout. Error: kBadInput for an invalid
/// configuration and for a folder that holds another run or belongs to another job, kFailed when the loss is not finite or a checkpoint
/// cannot be saved, kEnvironment when a peer is lost.
COHORT_API TrainResult train(const Config& config, const DataSet& data, const World& world);

}  // namespace cohort
