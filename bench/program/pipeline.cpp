// Times a workload through a pipeline.
//
// In forked ranks: all of them profile the layers at the same time, so that they get in each other's way as they will in training (rank 0's
// figures count), the loss as a part of the last one; the optimizer's update is that of the rank alone. Then blocks of five steps
// alternate: one rank alone with the whole batch and no pipeline, then each schedule. A step is zero_grad, forwards, backwards, update,
// between two barriers.
//
// Forecast of a step: the simulation of the schedule (schedule/simulate.h) and the update of the rank that has most weights.

#include "bench/program/pipeline.h"
#include "cohort/base/clock.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "bench/program/step.h"
#include "cohort/base/fail.h"
#include "cohort/base/statistics.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/models/graph/step_context.h"
#include "cohort/models/registry.h"
#include "cohort/parallel/make_strategy.h"
#include "cohort/pipeline/model_part.h"
#include "cohort/plan/cost/pipeline_forecast.h"
#include "cohort/plan/cut/split.h"
#include "cohort/train/model/profile_layers.h"
#include "cohort/tune/measure_machine.h"

namespace cohort {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kBlock = 5, kWarmUp = 3;
constexpr double kLearningRate = 1e-3;

/// Trains the whole model on this rank.
class AloneTrainee {
 public:
  AloneTrainee(const BenchWorkload& workload, const UpdateRule& rule)
      : model_(build_model(workload.model, workload.shape, 0)),
        strategy_(make_strategy(*model_, Group(), {.rule = rule})),
        batch_(bench_batch(workload)) {}

  void step() {
    strategy_->zero_grad();
    cross_entropy(model_->forward(batch_.input), batch_.target).backward();
    strategy_->finish_backward();
    update_seconds_.push_back(strategy_->step({.learning_rate = kLearningRate}).update_seconds);
  }
  double update_seconds() const { return median(update_seconds_); }

 private:
  std::shared_ptr<LayerGraph> model_;
  std::unique_ptr<Strategy> strategy_;
  BatchTensors batch_;
  std::vector<double> update_seconds_;
};

/// This rank's stages of a pipeline.
class PipelineTrainee {
 public:
  PipelineTrainee(const BenchWorkload& workload, const UpdateRule& rule, Group group, const Layout& layout, const StageAssignment& stages)
      : batch_(bench_batch(workload)),
        model_(build_model(workload.model, workload.shape, 0)),
        parallel_(*model_, group, layout, stages),
        strategy_(make_strategy(*model_, parallel_.data(), {.rule = rule})),
        meter_(*parallel_.pipeline(), group),
        num_micro_batches_(layout.microbatches) {
    strategy_->hold_gradients();
  }

  void step() {
    PipelineWork work;
    work.input = [&](int k) { return micro_batch(batch_.input, k); };
    work.loss = [&](int k, const at::Tensor& output) { return cross_entropy(output, micro_batch(batch_.target, k)) / num_micro_batches_; };
    strategy_->zero_grad();
    parallel_.pipeline()->step(num_micro_batches_, work);
    strategy_->exchange_without_backward();
    strategy_->finish_backward();
    strategy_->step({.learning_rate = kLearningRate});
  }
  void timed_step() {
    meter_.step([this] { step(); });
  }
  PipelineMeter::Result result() { return meter_.result(); }

 private:
  at::Tensor micro_batch(const at::Tensor& tensor, int k) const {
    const int64_t size = tensor.size(0) / num_micro_batches_;
    return tensor.narrow(0, k * size, size);
  }

  BatchTensors batch_;
  std::shared_ptr<LayerGraph> model_;
  ModelPart parallel_;
  std::unique_ptr<Strategy> strategy_;
  PipelineMeter meter_;
  int num_micro_batches_;
};

Profile profile_of(const BenchWorkload& workload, int num_micro_batches, Group& group) {
  // Seconds of a hand-over within a host: docs/algorithms/handover.md.
  constexpr double kLatencySeconds = 5e-6, kBytesPerSecond = 4e9;
  const auto model = build_model(workload.model, workload.shape, 0);
  const BatchTensors batch = bench_batch(workload);
  const int64_t size = workload.batch / num_micro_batches;
  group.barrier();
  const at::Tensor target = batch.target.narrow(0, 0, size);
  Profile profile = profile_layers(*model, batch.input.narrow(0, 0, size),
                                   {.loss = [&target](const at::Tensor& output) { return cross_entropy(output, target); }});
  profile.link_latency_seconds = kLatencySeconds;
  profile.link_bytes_per_second = kBytesPerSecond;
  return profile_from_json(Json::parse(group.all_gather_text(to_json(profile).dump(), "the profile").front()));
}

StageAssignment assign_stages(const Profile& profile, const Layout& layout) {
  const SplitOptions options{
      .num_stages = num_stages_of(layout.schedule, layout.pp), .num_micro_batches = layout.microbatches, .num_ranks = layout.pp};
  std::vector<int> cuts;
  if (layout.split != "auto" && layout.split != "even")
    for (const std::string& part : split(layout.split, '/')) cuts.push_back(static_cast<int>(parse_integer(part).value_or(0)));
  StageAssignment stages;
  for (const std::vector<int>& ranks : ranks_of_stages(make_schedule(layout.schedule, {.num_ranks = layout.pp, .num_micro_batches = 1})))
    stages.worker_of_stage.push_back(ranks.front());
  const Split cut = layout.split == "auto"   ? auto_split(profile, layout, options, stages.worker_of_stage)
                    : layout.split == "even" ? even_split(profile, options)
                                             : given_split(profile, options, cuts);
  stages.stage_of = stage_of_layers(cut.first_layer, profile.layers.size());
  return stages;
}

/// The largest number of weights of a worker.
double largest_weight_share(const Profile& profile, const StageAssignment& stages, int num_workers) {
  std::vector<double> bytes(static_cast<size_t>(num_workers));
  double all = 0;
  for (size_t layer = 0; layer < profile.layers.size(); ++layer) {
    const auto weight_bytes = static_cast<double>(profile.layers[layer].weight_bytes);
    bytes[static_cast<size_t>(stages.worker_of_stage[static_cast<size_t>(stages.stage_of[layer])])] += weight_bytes;
    all += weight_bytes;
  }
  return all > 0 ? *std::max_element(bytes.begin(), bytes.end()) / all : 0;
}

Layout layout_of(const BenchPipelineOptions& options, const std::string& schedule) {
  Layout layout;
  layout.pp = options.num_ranks;
  layout.schedule = schedule;
  layout.microbatches = options.num_micro_batches;
  layout.split = options.split;
  return layout;
}

double theoretical_bubble(const std::string& schedule, int num_ranks, int num_micro_batches) {
  const std::vector<double> ones(static_cast<size_t>(num_stages_of(schedule, num_ranks)), 1.0);
  return simulate(make_schedule(schedule, {.num_ranks = num_ranks, .num_micro_batches = num_micro_batches}),
                  {.forward = ones, .backward_input = ones, .backward_weight = ones})
      .bubble;
}

Json measure(const BenchPipelineOptions& options, const World& world, Group& group) {
  const BenchWorkload workload = bench_workload(options.workload);
  const Profile profile = profile_of(workload, options.num_micro_batches, group);
  const auto whole = build_model(workload.model, workload.shape, 0);
  AloneTrainee alone(workload, options.rule);
  std::vector<PipelineRecord> forecasts;
  std::vector<double> update_shares;
  std::vector<std::unique_ptr<PipelineTrainee>> trainees;
  for (const std::string& schedule : options.schedules) {
    const Layout layout = layout_of(options, schedule);
    const StageAssignment stages = assign_stages(profile, layout);
    forecasts.push_back(forecast_pipeline(profile, layout, stages, {}));
    update_shares.push_back(largest_weight_share(profile, stages, layout.pp));
    trainees.push_back(std::make_unique<PipelineTrainee>(workload, options.rule, group, layout, stages));
  }

  for (int i = 0; i < kWarmUp; ++i) {
    alone.step();
    for (const auto& trainee : trainees) trainee->step();
  }
  std::vector<double> alone_seconds;
  for (int done = 0; done < options.steps; done += kBlock) {
    group.barrier();
    for (int i = 0; i < kBlock && world.rank == 0; ++i) {
      const auto start = Clock::now();
      alone.step();
      alone_seconds.push_back(seconds_since(start));
    }
    for (const auto& trainee : trainees)
      for (int i = 0; i < kBlock; ++i) trainee->timed_step();
  }
  Json answer{{"one_worker_seconds", median(alone_seconds)}, {"schedules", Json::array()}};
  for (size_t i = 0; i < trainees.size(); ++i) {
    const PipelineMeter::Result result = trainees[i]->result();
    answer["schedules"].push_back({{"step_seconds", result.step_seconds},
                                   {"predicted_seconds", forecasts[i].predicted_step_seconds + alone.update_seconds() * update_shares[i]},
                                   {"bubble", result.bubble},
                                   {"predicted_bubble", forecasts[i].predicted_bubble},
                                   {"trace", timeline_trace(result.last).dump()}});
  }
  return answer;
}

}  // namespace

BenchPipelineTimes bench_pipeline(const BenchPipelineOptions& options) {
  const BenchWorkload workload = bench_workload(options.workload);
  if (options.num_ranks < 2) fail(ErrorCode::kBadInput, "bench pipeline: ", options.num_ranks, " workers; a pipeline needs 2 or more");
  if (options.num_micro_batches < 1 || workload.batch % options.num_micro_batches != 0)
    fail(ErrorCode::kBadInput, "bench pipeline: a batch of ", workload.batch, " is not cut evenly into ", options.num_micro_batches,
         " micro-batches");
  std::vector<double> theory;
  for (const std::string& schedule : options.schedules)
    theory.push_back(theoretical_bubble(schedule, options.num_ranks, options.num_micro_batches));
  const Json measured = measure_in_ranks(options.num_ranks, options.backend,
                                         [&](const World& world, Group& group) { return measure(options, world, group); });
  BenchPipelineTimes times{measured.at("one_worker_seconds").get<double>(), {}};
  for (size_t i = 0; i < options.schedules.size(); ++i) {
    const Json& one = measured.at("schedules").at(i);
    times.schedules.push_back({layout_of(options, options.schedules[i]), one.at("step_seconds").get<double>(),
                               one.at("predicted_seconds").get<double>(), one.at("bubble").get<double>(),
                               one.at("predicted_bubble").get<double>(), theory[i], one.at("trace").get<std::string>()});
  }
  return times;
}

}  // namespace cohort
