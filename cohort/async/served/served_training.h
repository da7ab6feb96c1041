#pragma once
// Trainings of real workers that do not wait for one another: sync=async and stale:K. Rank 0 serves the model (model_server.h) in a thread
// of its own, and is a worker as well (served_worker.h), as all other ranks are.

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

/// This rank's part, as train() of train_job.h: what it returns is rank 0's; other ranks know of steps alone how many pushes they made.
/// Error(kEnvironment) on a rank whose rank 0 is gone.
TrainResult train_served(const Job& job, const DataSet& data, const World& world, const TrainOptions& options);
/// The same over a store by which the ranks meet; they may be threads of one process.
TrainResult train_served(const Job& job, const DataSet& data, const World& world, const c10::intrusive_ptr<c10d::Store>& store,
                         const TrainOptions& options);

struct JoinRequest {
  std::string address;  ///< HOST:PORT, as the training said it.
  std::string data;     ///< Where they are here; "": as there.
  int threads = 0;      ///< 0: as there, or all cores.
  double timeout_seconds = 60;
};

/// One more worker of a training that listens (--listen), until that ends or a stop signal comes; returns how many pushes it made. Its
/// configuration comes from there; `open` loads its plug-in and data. Error(kBadInput) without the job's secret, or where the data are
/// others; Error(kEnvironment) where nobody is there, the secret is another, or rank 0 is gone.
int64_t join_training(const JoinRequest& request, const std::function<DataSet(const Config&)>& open);

}  // namespace cohort
