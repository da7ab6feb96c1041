#pragma once
// Asynchronous trainings with real workers. Rank 0 serves the model (model_server.h) in a thread of its own and is also a worker
// (served_worker.h), as all other ranks are.

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <functional>
#include <string>

#include "cohort/data/source/source.h"
#include "cohort/job/job.h"
#include "cohort/train/train_options.h"
#include "cohort/train/train_result.h"
#include "cohort/world/world.h"

namespace c10d {
class Store;
}

namespace cohort {

/// Runs this rank, as train() does. Only rank 0 returns a result; other ranks return an empty one. Error(kEnvironment) on other ranks if
/// rank 0 is gone.
TrainResult train_served(const Job& job, const DataSet& data, const World& world, const TrainOptions& options);
/// With a given store for the rendezvous; the ranks may be threads of one process.
TrainResult train_served(const Job& job, const DataSet& data, const World& world, const c10::intrusive_ptr<c10d::Store>& store,
                         const TrainOptions& options);

struct JoinRequest {
  std::string address;  ///< HOST:PORT, as the training logged it.
  std::string data;     ///< Path of the data here; "": as in the training's configuration.
  int threads = 0;      ///< 0: as in the training's configuration, or all cores.
  double timeout_seconds = 60;
};

/// Joins a training that listens (--listen) as a further worker, until that ends or a stop signal arrives; returns the number of pushes.
/// The configuration comes from the training; `open` loads its plug-in and data. Error(kBadInput) without the job's secret or with other
/// data; Error(kEnvironment) if nobody answers, the secret is another, or rank 0 is gone.
int64_t join_training(const JoinRequest& request, const std::function<DataSet(const Config&)>& open);

}  // namespace cohort
