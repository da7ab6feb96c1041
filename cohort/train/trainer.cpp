// The training loop. A step (training_step.h) takes this rank's share of the global batch from the loader, which reads ahead; the loss and
// Ctrl-C of each rank travel with the gradients, so all ranks report one loss and stop after the same step without a message of their own.
// Then evaluation and checkpoint where they are due.
#include "cohort/train/trainer.h"

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <limits>
#include <numeric>
#include <thread>

#include "cohort/base/clock.h"
#include "cohort/base/error.h"
#include "cohort/base/log.h"
#include "cohort/base/memory.h"
#include "cohort/base/statistics.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/comm/group.h"
#include "cohort/comm/shm/memory_count.h"
#include "cohort/data/loader.h"
#include "cohort/job/fault.h"
#include "cohort/job/layout.h"
#include "cohort/job/training_defaults.h"
#include "cohort/models/registry.h"
#include "cohort/parallel/agreement.h"
#include "cohort/parallel/batch_norm/convert_sync_batch_norm.h"
#include "cohort/train/device.h"
#include "cohort/train/evaluate.h"
#include "cohort/train/measured/balance.h"
#include "cohort/train/run/check_run.h"
#include "cohort/train/run/run.h"
#include "cohort/train/run/run_state.h"
#include "cohort/train/training_step.h"
#include "cohort/world/start_time.h"
#include "cohort/world/status.h"
#include "cohort/world/stop.h"

namespace cohort {
namespace {

int threads_of_rank(const Config& config, const World& world) {
  if (config.threads > 0) return config.threads;
  return cores_of_rank(world);
}

}  // namespace

Run::Run(const Job& job, const DataSet& data, const World& world, const TrainOptions& options)
    : job_(job),
      config_(with_defaults(job.config)),
      data_(data),
      world_(world),
      options_(options),
      layout_(job_.layout),
      injection_(injection_for_rank(job.faults, world.rank)),
      device_(device_of_rank(job.config.device, world.local_rank)) {
  const Config& config = job_.config;
  at::set_num_threads(threads_of_rank(config, world));
  if (config.memory_limit > 0) limit_memory(config.memory_limit);
  if (world.status_fd >= 0) {
    status_ = StatusPage::open(::dup(world.status_fd), world.size);
    count_steps(status_[world.rank]);
  }
  group_ = Group::create(world, {.backend = config.backend, .timeout_seconds = config.timeout, .device = link_of_device(device_)});
  take_folder();
  check_same_text(group_, to_toml(config_), "the configuration", "start all ranks with the same options and config.toml");
  const int64_t steps_per_epoch = Sampler(data.train->num_samples(), config.global_batch, config.seed).steps_per_epoch();
  total_steps_ = steps_of_run(config, data.train->num_samples());
  shares_ = parse_shares(config.shares, num_pipelines(lockstep_layout()));
  set_up_model();
  set_up_step();
  state_ = std::make_unique<RunState>(config_, layout_, *model_, *parallel_.strategy, group_, parallel_.places(), data_identity());
  if (config_.resume) resume();
  if (first_step_ > total_steps_)
    fail(ErrorCode::kBadInput, "--resume: the run has done ", first_step_, " steps, and ", total_steps_,
         " are asked for; give more --steps or ", "--epochs, or leave them out");
  if (reports_here()) write_run_config(config_);  // Not before layout and checkpoint are known to fit.
  if (config_.eval_every == 0) config_.eval_every = std::min(steps_per_epoch, std::max<int64_t>(1, total_steps_));
  warn();
  if (reports_here()) {
    metrics_ = std::make_unique<Metrics>(config_.run, first_step_, config_.json);
    progress_ = std::make_unique<Progress>(total_steps_, first_step_, !config_.quiet);
  }
}

/// Model, layout and strategy; from here on model_ is this rank's part.
void Run::set_up_model() {
  const Config& config = job_.config;
  model_ = build_model(config.model, data_.train->shape(), config.seed);
  check_model(config, layout_, *model_);
  if (options_.alter_model) altered_ = options_.alter_model(*model_);
  model_->to(device_);
  if (options_.reports) check_goal(job_, *model_, *data_.validation);
  parallel_ = parallelize(*model_, job_, data_, group_, {.fault = options_.fault, .checks_pieces = options_.reports});
  if (options_.in_turn) in_turn_ = std::make_unique<InTurn>(*model_, *options_.in_turn, altered_.borrowed, altered_.order);
}

void Run::set_up_step() {
  if (config_.noise_scale > 0 && options_.reports) {
    check_noise_scale(config_, layout_, world_.size);
    noise_ = std::make_unique<NoiseMeter>(*model_, *parallel_.strategy, parallel_.part->data(),
                                          NoiseMeterOptions{.every = config_.noise_scale, .exchange_exactly = layout_.compress != "none"});
  }
  step_ = std::make_unique<TrainingStep>(job_, data_.train->shape(), *model_, *parallel_.strategy, *parallel_.part,
                                         TrainingStepOptions{.total_steps = total_steps_,
                                                             .device = device_,
                                                             .slow_factor = injection_.slow_factor,
                                                             .microbatches = lockstep_layout().microbatches,
                                                             .empty_forward = config_.sync_batch_norm,
                                                             .noise = noise_.get(),
                                                             .in_turn = in_turn_.get(),
                                                             .loss = altered_.loss});
}

/// What a user should know before the training starts.
void Run::warn() {
  const int64_t granularity = model_->sample_granularity(), pieces = std::max(1, config_.accumulate);
  if (world_.size > 1 && shares_.automatic)
    balance_ = std::make_unique<Balance>(shares_.weights, std::max<int64_t>(1, config_.global_batch / pieces / granularity));
  if (!reports_here()) return;
  const int64_t num_shares = config_.sync_batch_norm ? 1 : parallel_.part->num_pipelines();
  // Norms over groups keep those together: no statistic has more samples than that (kWholeBatch is more than any batch).
  int64_t per_statistic = std::max<int64_t>(1, config_.global_batch / (pieces * layout_.microbatches) / num_shares);
  if (granularity > 1) per_statistic = std::min(per_statistic, granularity);
  if (const int64_t asked = pieces * layout_.microbatches, made = num_pieces(job_, *model_, data_); made < asked)
    log_warning(concat("this model's batch norm keeps groups of ", granularity, " samples together, so a step has ", made,
                       " pieces and not ", asked,
                       "; use a larger --global-batch, or another norm (norm=group, none, norm=ghost with a smaller ghost=N)"));
  for (const std::string& warning : {small_batch_warning(*model_, per_statistic), precision_warning(job_.precision, device_.type())})
    if (!warning.empty()) log_warning(warning);
}

LoaderOptions Run::loader_options() const {
  return {.global_batch = config_.global_batch,
          .seed = config_.seed,
          .rank = parallel_.part->pipeline_index(),
          .num_ranks = in_turn_ ? in_turn_->num_shares() : parallel_.part->num_pipelines(),
          .granularity = model_->sample_granularity(),
          .pieces = config_.accumulate * lockstep_layout().microbatches,
          .first_step = first_step_,
          .end_step = total_steps_,
          .all_in_turn = in_turn_ != nullptr,
          .weights = shares_.weights};
}

/// Gives faster ranks more samples, from a step on that nobody has read yet.
void Run::rebalance(Loader& loader, int64_t number, const StepMetrics& metrics, int64_t num_samples) {
  if (!balance_) return;
  balance_->add_step(metrics.compute_seconds, num_samples);
  if ((number + 1) % Balance::kStepsOfRound != 0) return;
  if (!balance_->update(gather_numbers(group_, balance_->seconds_per_sample(), "the ranks' speeds"))) return;
  const int64_t from = loader.first_free_step();
  if (from >= total_steps_) return;
  loader.set_weights(from, balance_->weights());
  if (reports_here()) metrics_->event(Json{{"event", "shares"}, {"from_step", from + 1}, {"shares", balance_->weights()}});
}

EvaluationOptions Run::evaluation_options() {
  ModelPart& part = *parallel_.part;
  EvaluationOptions options{.batch_size = evaluation_batch_size(config_.global_batch, config_.accumulate),
                            .index = part.pipeline_index(),
                            .count = part.num_pipelines(),
                            .finish = [this] { parallel_.strategy->finish_evaluation(); }};
  // A chunk of a rank's micro-batch fits where its step did.
  if (config_.memory_limit > 0)
    options.batch_size = std::clamp<int64_t>(config_.global_batch / part.num_pipelines() / config_.accumulate, 1, options.batch_size);
  if (part.pipeline()) options.begin = [&part] { part.pipeline()->begin_evaluation(); };
  options.forward = [this, &part](int64_t number, const std::function<at::Tensor()>& input) {
    at::Tensor output = part.pipeline() ? part.pipeline()->evaluate(number, input) : model_->forward(input());
    if (output.defined()) output = part.whole_output(output);
    return part.here().tensor == 0 ? output : at::Tensor();
  };
  return options;
}

void Run::evaluate_now(int64_t step, bool last) {
  if (!options_.reports) return;
  const bool with_confusion = data_.train->shape().kind == DataShape::Kind::kImage && data_.train->shape().num_classes <= 100;
  EvaluationOptions options = evaluation_options();
  options.with_confusion = with_confusion;
  last_evaluation_ = evaluate(*model_, *data_.validation, group_, options);
  evaluated_step_ = step;
  result_.val_loss = last_evaluation_.loss;
  result_.val_error = last_evaluation_.error;
  if (is_first()) metrics_->evaluation(step, last_evaluation_.loss, last_evaluation_.error);
  // The sums are everybody's, so all ranks end here; what this step made of the weights is not saved.
  step_->check_finite("the validation loss", last_evaluation_.loss, std::max<int64_t>(1, step) - 1);
  if (is_first() && !last)
    progress_->note(concat("step ", step, ": validation loss ", last_evaluation_.loss,
                           last_evaluation_.has_error() ? concat(", error ", 100 * last_evaluation_.error, " %") : ""));
}

/// [{"layer": "conv1", "stage": 0, "worker": 0}, ...]: who ran which layer of a pipeline.
Json Run::describe_stages() const {
  Json layers = Json::array();
  for (size_t layer = 0; layer < parallel_.plan.stages.stage_of.size(); ++layer) {
    const int stage = parallel_.plan.stages.stage_of[layer];
    layers.push_back(Json{{"layer", model_->layers()[layer].name},
                          {"stage", stage},
                          {"worker", parallel_.plan.stages.worker_of_stage.at(static_cast<size_t>(stage))}});
  }
  return layers;
}

/// Once. A dynamic scale learns from the first overflows, so they are its own business; a fixed one does not.
void Run::tell_skipped(int64_t step) {
  if (skip_is_told_ || config_.loss_scale == 0 || !reports_here()) return;
  skip_is_told_ = true;
  log_warning(concat("step ", step, " was skipped: its gradients overflowed fp16 with the fixed --loss-scale ", config_.loss_scale,
                     "; use a smaller one, or 0 for a dynamic one. How many were skipped stands at the end"));
}

TrainResult Run::train() {
  write_start();
  result_.steps = first_step_;
  if (options_.keep_first) save(first_step_, /*is_last=*/false);
  bool stop = false, goal_reached = false;
  if (first_step_ < total_steps_) {
    Loader loader(data_.train, loader_options());
    for (int64_t number = first_step_; number < total_steps_ && !stop && !goal_reached; ++number) {
      if (number == injection_.kill_step) ::raise(SIGKILL);
      if (number == first_step_ && injection_.pause_seconds > 0)
        std::this_thread::sleep_for(std::chrono::duration<double>(injection_.pause_seconds));
      LoadedBatch batch = loader.next();
      const StepResult step = step_->run(number, batch);
      stop = step.stop;
      result_.steps = number + 1;
      if (number == first_step_) first_step_seconds_ = seconds_since_command(world_);
      result_.loss = step.metrics.loss;
      if (status_) status_[world_.rank].last_step = number + 1;
      step_seconds_.push_back(step.metrics.step_seconds);
      samples_ += batch.num_local_samples();
      rebalance(loader, number, step.metrics, batch.num_local_samples());
      loader.recycle(std::move(batch.batch));
      totals_.data_seconds += step.metrics.data_seconds;
      totals_.compute_seconds += step.metrics.compute_seconds;
      totals_.exchange_seconds += step.metrics.exchange_seconds;
      totals_.optimizer_seconds += step.metrics.optimizer_seconds;
      const bool last = number + 1 == total_steps_;
      if (step.skipped) tell_skipped(number + 1);
      if (reports_here() && ((number + 1) % config_.log_every == 0 || last || stop)) metrics_->step(step.metrics);
      if (reports_here() && step.noise) metrics_->noise_scale(*step.noise);
      if ((number + 1) % config_.eval_every == 0 || last) evaluate_now(number + 1, last);
      if (reports_here()) {
        const std::optional<double> error =
            evaluated_step_ >= 0 && last_evaluation_.has_error() ? std::optional<double>(result_.val_error) : std::nullopt;
        progress_->update(number + 1, step.metrics.loss, step.metrics.samples_per_second, error);
      }
      if (job_.goal && evaluated_step_ == number + 1)
        goal_reached = job_.goal->reached({{"val_error", result_.val_error}, {"val_loss", result_.val_loss}, {"loss", result_.loss}});
      const bool ends = last || stop || goal_reached;
      if (ends || save_is_due(number + 1)) save(number + 1, ends);
    }
  }
  if (evaluated_step_ < 0 && !stop) evaluate_now(result_.steps, true);  // Nothing was left to train.
  write_end(stop);
  return result_;
}

TrainResult train(const Job& job, const DataSet& data, const World& world, const TrainOptions& options) {
  keep_freed_memory();
  catch_stop_signals();
  // Those of verify() are pieces of a comparison: it has checked the whole.
  if (options.reports) {
    check_config(job.config);
    check_run(job, data.train->shape().kind == DataShape::Kind::kText);
    check_data(job, data);
  }
  return Run(job, data, world, options).train();
}

TrainResult train(const Config& config, const DataSet& data, const World& world) {
  return train(resolve(config, world.size, world.local_size == world.size), data, world);
}

}  // namespace cohort
