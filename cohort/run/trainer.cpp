// Sets a run up and gives it to what trains it: the loop of ranks in step, served workers, or the virtual clock.
#include "cohort/run/trainer.h"

#include <memory>
#include <utility>

#include "cohort/async/served/served_training.h"
#include "cohort/async/simulated/clock_only.h"
#include "cohort/async/simulated/virtual_training.h"
#include "cohort/base/fail.h"
#include "cohort/base/system/machine.h"
#include "cohort/run/train_job.h"
#include "cohort/train/check_run.h"
#include "cohort/train/loop.h"
#include "cohort/world/stop.h"

namespace cohort {

TrainResult train(const Job& job, const DataSet& data, const World& world, const TrainOptions& options) {
  keep_freed_memory();
  catch_stop_signals();
  if (is_served(job.config, job.layout)) return train_served(job, data, world, options);
  RunSetup run(job, data, world, options);
  std::unique_ptr<VirtualTraining> virtual_workers;
  if (!run.config.virtual_time.empty()) virtual_workers = make_virtual_training(run);
  RunSaver saver(run);
  begin_run(run);
  RunReporter reporter(run, saver, clock_only_pace);
  return virtual_workers ? virtual_workers->train(saver, reporter) : train_synchronously(run, saver, reporter);
}

TrainResult train(const Config& given, const DataSet& data, const World& world) {
  if (!data.train || !data.validation)
    fail(ErrorCode::kBadInput, "train() was given a DataSet without ", data.train ? "validation" : "training", " samples");
  if (given.workers > 0 && given.workers != world.size)
    fail(ErrorCode::kBadInput, "Config::workers is ", given.workers, ", and train() was given a World of ", world.size,
         "; ranks are started by the command line or a launcher, so leave it 0");
  for (const auto& [name, value] : {std::pair("study", given.study), std::pair("plugin", given.plugin)})
    if (!value.empty())
      fail(ErrorCode::kBadInput, "Config::", name, " (", value, ") is read by the command line, not by train(); leave it empty");
  check_config(given);
  Config config = given;
  if (!data.name.empty()) config.data = data.name;
  const Job job = resolve(config, world.size, world.local_size == world.size);
  check_job(job, data);
  return train(job, data, world);
}

}  // namespace cohort
