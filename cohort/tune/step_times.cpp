// Measures step times: forked ranks train every batch size for a while with the trainer's loader, strategy and step (training_step.h).
// Numbers of workers take turns, kRounds times, so that other load on the machine affects all of them. The steps of all rounds give median
// and quartiles. The time of a step is rank 0's, including the wait for data, as `train` prints it.
#include "cohort/tune/step_times.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "cohort/base/fail.h"
#include "cohort/base/statistics.h"
#include "cohort/base/system/machine.h"
#include "cohort/base/text/json.h"
#include "cohort/data/loader.h"
#include "cohort/job/layout.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/train/advice/balance.h"
#include "cohort/train/model/strategy_options.h"
#include "cohort/train/step/parallelize.h"
#include "cohort/train/step/training_step.h"
#include "cohort/trials/trial_data.h"
#include "cohort/tune/measure_machine.h"

namespace cohort {
namespace {

using study::StepTime;
using study::StudySpec;

constexpr int kRounds = 3, kWarmUpSteps = 3, kProbeSteps = 2, kLeastSteps = 4, kMostSteps = 2000;  // Steps of a cell in one round.

/// The job of `train` for this cell. Hyperparameters of the optimizer do not change the cost of a step.
Job job_of(const StudySpec& spec, int64_t batch_size, int num_workers) {
  Config config;
  config.model = spec.model;
  config.context = spec.context;
  config.global_batch = batch_size;
  const int64_t per_worker = (batch_size + num_workers - 1) / num_workers;
  if (spec.max_microbatch > 0) config.accumulate = static_cast<int>((per_worker + spec.max_microbatch - 1) / spec.max_microbatch);
  config.optimizer = spec.optimizer;
  config.lr = 1e-6;
  config.weight_decay = spec.weight_decay;
  config.seed = spec.seed;
  return resolve(config, num_workers);
}

/// One rank's view of one batch size.
class Cell {
 public:
  Cell(const Job& job, const DataSet& data, LayerGraph& model, ParallelModel& parallel)
      : job_(job),
        step_(job_, data.train->shape(), model, *parallel.strategy, *parallel.part, {.total_steps = std::numeric_limits<int32_t>::max()}),
        loader_(data.train, {.global_batch = job.config.global_batch,
                             .seed = job.config.seed,
                             .rank = parallel.part->pipeline_index(),
                             .num_ranks = parallel.part->num_pipelines(),
                             .granularity = model.sample_granularity(),
                             .pieces = job.config.accumulate}) {}
  /// Seconds of each of the next `count` steps.
  std::vector<double> run(int count) {
    std::vector<double> seconds;
    for (int i = 0; i < count; ++i) {
      LoadedBatch batch = loader_.next();
      seconds.push_back(step_.run(number_++, batch).metrics.step_seconds);
      loader_.recycle(std::move(batch.batch));
    }
    return seconds;
  }

 private:
  const Job job_;
  TrainingStep step_;
  Loader loader_;
  int64_t number_ = 0;
};

/// Whether a rank would have no samples, which the trainer refuses.
bool leaves_rank_without_samples(const Config& config, const DataSet& data, const LayerGraph& model, const World& world) {
  const int64_t batch = std::min(config.global_batch, data.train->num_samples());
  return share_of_rank(batch, world.size - 1, world.size, model.sample_granularity()).size() == 0;
}

/// Runs on every rank: seconds of the steps of each batch size in this round; empty where a rank would have no samples.
Json measure_round(const StudySpec& spec, const DataSet& data, const std::vector<int64_t>& batch_sizes, double seconds, const World& world,
                   Group& group) {
  const std::shared_ptr<LayerGraph> model = build_trial_model(spec, data.train->shape(), spec.seed);
  const Job any = job_of(spec, 1, world.size);
  ParallelModel parallel{spread_model(*model, stage_request(*model, any, *data.train), group, spec.model), nullptr};
  parallel.strategy = make_strategy(*model, parallel.part->data(), strategy_options(any));
  Json measured = Json::array();
  for (const int64_t batch_size : batch_sizes) {
    const Job job = job_of(spec, batch_size, world.size);
    measured.push_back(Json::array());
    if (leaves_rank_without_samples(job.config, data, *model, world)) continue;
    Cell cell(job, data, *model, parallel);
    cell.run(kWarmUpSteps);
    const std::vector<double> probe = cell.run(kProbeSteps);
    // All ranks run the same number of steps, that of the slowest.
    const std::vector<double> slowest = gather_numbers(group, *std::min_element(probe.begin(), probe.end()), "the ranks' step times");
    const double steps = seconds / *std::max_element(slowest.begin(), slowest.end());
    measured.back() = cell.run(static_cast<int>(std::clamp(steps, double{kLeastSteps}, double{kMostSteps})));
  }
  return measured;
}

/// 1 to 8, then 12, 16, 24, 32, ..., and the last.
std::vector<int> numbers_of_workers(int most) {
  std::vector<int> numbers;
  for (int number = 1; number < most; number += number < 8 ? 1 : (number & (number - 1)) == 0 ? number / 2 : number / 3)
    numbers.push_back(number);
  numbers.push_back(most);
  return numbers;
}

}  // namespace

std::vector<StepTime> measure_step_times(const StudySpec& spec, const std::vector<int64_t>& batch_sizes, const StepTimesOptions& options) {
  if (spec.is_noisy_quadratic() || batch_sizes.empty()) return {};
  const int most = options.max_workers > 0 ? options.max_workers : num_usable_cores();
  if (most > num_usable_cores())
    fail(ErrorCode::kBadInput, "step times for ", most, " workers on ", num_usable_cores(),
         " cores: workers that share a core say nothing about a machine that has more; ask for at most ", num_usable_cores());
  const std::string source = options.synthetic ? spec.synthetic : spec.data;
  const DataSet data = open_data(
      source, {.context = spec.context, .image_size = options.synthetic ? 0 : spec.image_size, .validation_samples = spec.val_samples});
  const std::vector<int> numbers = numbers_of_workers(most);
  const double num_cells = static_cast<double>(numbers.size() * batch_sizes.size());
  const double seconds = std::min(options.cell_seconds, options.total_seconds / num_cells) / kRounds;

  std::map<std::pair<int64_t, int>, std::vector<double>> measured;
  for (int round = 0; round < kRounds; ++round) {
    for (const int number : numbers) {
      const Json all = measure_in_ranks(number, options.backend, [&](const World& world, Group& group) {
        return measure_round(spec, data, batch_sizes, seconds, world, group);
      });
      for (size_t i = 0; i < batch_sizes.size(); ++i)
        for (const Json& step : all[i]) measured[{batch_sizes[i], number}].push_back(step.get<double>());
    }
  }
  std::vector<StepTime> times;
  for (const int64_t batch_size : batch_sizes) {
    for (const int number : numbers) {
      std::vector<double>& steps = measured[{batch_size, number}];
      if (steps.empty()) continue;
      times.push_back({batch_size, number, quantile(steps, 0.5), quantile(steps, 0.25), quantile(steps, 0.75)});
    }
  }
  return times;
}

}  // namespace cohort
