#include "cohort/train/run_records.h"

#include <unistd.h>

#include <string>

#include "cohort/base/fail.h"
#include "cohort/base/system/machine.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/comm/shm/memory_count.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/parallel/strategy/data_parallel.h"
#include "cohort/record/run_event.h"
#include "cohort/train/model/tensor_division.h"
#include "cohort/train/records/origin.h"
#include "cohort/version.h"

namespace cohort {
namespace {

PartRecord part_record(const RunSetup& run, double exchange_seconds) {
  const auto place = [](int index, int size) { return concat(index + 1, " of ", size); };
  const ModelPart& held = *run.parallel.part;
  const MeshPoint& here = held.here();
  PartRecord part{.data = place(here.data, held.mesh().data_size(here.pipe)),
                  .pipe = place(here.pipe, held.mesh().pipe_size()),
                  .tensor = place(here.tensor, held.mesh().tensor_size())};
  for (const LayerGraph::Layer& layer : run.model->layers())
    if (layer.function) part.layers.push_back(layer.name);
  if (const PipelineRunner* const pipeline = run.parallel.part->pipeline()) {
    part.stages.assign(pipeline->own_stages().begin(), pipeline->own_stages().end());
    part.waited_seconds = exchange_seconds;
    part.most_kept_micro_batches = pipeline->statistics().most_kept;
  }
  return part;
}

}  // namespace

StartRecord start_record(const RunSetup& run) {
  StartRecord start{
      .world_size = run.num_workers(),
      .layout = to_json(run.job.layout).dump(),
      .parameters = run.parallel.num_parameters,
      .train_samples = run.data.train->num_samples(),
      .val_samples = run.data.validation->num_samples(),
      .model = run.config.model,
      .data = run.config.data,
      .global_batch = run.config.global_batch,
      .steps = run.total_steps,
      .batch_schedule = run.config.batch_schedule,
      .optimizer = OptimizerRecord{.name = run.config.optimizer, .lr = run.config.lr, .weight_decay = run.config.weight_decay},
      .backend = run.group.backend_name(),
      .launcher = run.world.launcher,
      .version = COHORT_VERSION,
      .torch = COHORT_BUILT_WITH_TORCH,
      .host = run.world.host,
      .started = utc_now(),
      .command = command_of_process(),
      .commit = commit_of("."),
      .resume_with = resume_command(run.config.run),
      .reproduce_with = reproduce_command(run.config.run),
      .devices = run.device_names,
      .device_backend = run.group.device_backend_name()};
  start.loss = run.model->loss_name();
  if (run.data.skipped.count > 0) start.skipped_samples = run.data.skipped.count;
  start.skipped = run.data.skipped.first;
  if (run.job.layout.tp > 1) start.tensor_parallel = division_record(run.parallel.division, run.job.layout);
  return start;
}

RankRecord rank_record(const RunSetup& run, const RankRecord& totals) {
  const MemoryForecast forecast = run.parallel.strategy->memory_forecast();
  RankRecord mine = totals;
  mine.rank = run.world.rank;
  mine.host = run.world.host;
  if (!run.device_names.empty()) mine.device = run.device.str();
  mine.pid = ::getpid();
  mine.peak_memory_bytes = peak_memory_bytes();
  mine.weight_bytes = forecast.weight_bytes;
  mine.gradient_bytes = forecast.gradient_bytes;
  mine.optimizer_bytes = forecast.optimizer_bytes;
  if (run.config.memory_limit > 0) {
    mine.memory_limit_bytes = run.config.memory_limit;
    mine.peak_tensor_bytes = peak_counted_memory_bytes();
  }
  if (!run.parallel.part->is_whole()) mine.part = part_record(run, mine.exchange_seconds);
  return mine;
}

RanksRecord gather_ranks(Group& group, const RankRecord& mine) {
  RanksRecord all;
  for (const std::string& text : group.all_gather_text(to_line(RanksRecord{{mine}}), "the ranks' totals"))
    all.ranks.push_back(record_from<RanksRecord>(Json::parse(text), "the ranks' totals").ranks.at(0));
  return all;
}

}  // namespace cohort
