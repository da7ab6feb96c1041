#include "cohort/train/run_setup.h"

#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <unistd.h>

#include <algorithm>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/statistics.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/text.h"
#include "cohort/comm/compute_threads.h"
#include "cohort/comm/shm/memory_count.h"
#include "cohort/data/sampler.h"
#include "cohort/data/source/description_json.h"
#include "cohort/job/learning_rate.h"
#include "cohort/job/option_rules.h"
#include "cohort/job/specs/injected_faults.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/parallel/batch_norm/convert_sync_batch_norm.h"
#include "cohort/parallel/common/agreement.h"
#include "cohort/plan/cost/memory.h"
#include "cohort/train/check_run.h"
#include "cohort/train/initial_model.h"
#include "cohort/train/model/batch_tensors.h"
#include "cohort/train/model/precision.h"
#include "cohort/train/model/rounded_model.h"

namespace cohort {
namespace {

/// The exchange time of a synchronised batch norm layer: the median of a few all-gathers of the sums of 64 channels. Collective.
double statistics_exchange_seconds(Group group) {
  const at::Tensor mine = at::zeros({2 * 64 + 1}, at::kDouble), all = at::zeros({group.size() * mine.numel()}, at::kDouble);
  std::vector<double> seconds;
  for (int i = 0; i < 5; ++i) {
    const double start = steady_seconds();
    group.all_gather(all, mine, "statistics as batch norm has them");
    seconds.push_back(steady_seconds() - start);
  }
  return median(seconds);
}

/// Collective.
void warn_of_run(const RunSetup& run) {
  const int64_t granularity = run.model->sample_granularity(), pieces = std::max(1, run.config.accumulate) * run.job.layout.microbatches;
  const int num_shares = run.config.sync_batch_norm ? 1 : std::max(run.options.num_served, run.parallel.part->num_pipelines());
  // A norm over groups takes no statistic over more samples than a group has (kWholeBatch is more than any batch).
  StatisticSamples statistic{.samples = std::max<int64_t>(1, run.config.global_batch / pieces / num_shares),
                             .global_batch = run.config.global_batch,
                             .num_workers = num_shares,
                             .num_micro_batches = static_cast<int>(pieces)};
  if (granularity > 1) statistic.samples = std::min(statistic.samples, granularity);
  if (statistic.samples < kFewSamples && num_shares > 1 && run.options.reports)  // All ranks come to the same answer.
    statistic.exchange_seconds = statistics_exchange_seconds(run.group);
  if (!run.reports_here()) return;
  if (const std::string sentence = rounded_steps_sentence(run.job, run.data.train->num_samples()); !sentence.empty()) log_info(sentence);
  if (const int64_t made = num_pieces(run.job, *run.model, run.data); made < pieces)
    log_warning(concat(
        "this model's batch norm keeps groups of ", granularity, " samples together, so a step has ", made, " pieces and not ", pieces,
        name_settings("; use a larger --global-batch, or another norm (norm=group, none, norm=ghost with a smaller ghost=N)")));
  const bool has_lstm = std::any_of(run.model->layers().begin(), run.model->layers().end(),
                                    [](const LayerGraph::Layer& layer) { return layer.kind == "lstm"; });
  for (const std::string& warning :
       {small_batch_warning(*run.model, statistic), precision_warning(run.job.precision, run.device.type(), has_lstm)})
    if (!warning.empty()) log_warning(warning);
}

PruningSchedule pruning_schedule(const Job& job, int64_t total_steps) {
  return {*job.pruning, job.config.prune_until, !job.config.init_from.empty(), total_steps};
}

std::string pruning_sentence(const RunSetup& run) {
  return run.prunable ? describe_pruning(run.config.prune, *run.job.pruning, *run.prunable, pruning_schedule(run.job, run.total_steps))
                      : "";
}

/// Estimated seconds of a training step for one sample: three forwards, since a backward takes about two. The whole model is not changed.
double measure_student(LayerGraph& model, const DataSource& source, c10::Device device) {
  constexpr int64_t kSamples = 16;
  constexpr int kRounds = 3, kForwardsOfStep = 3;
  const at::NoGradGuard no_grad;
  const at::Tensor input = input_batch(source, 0, kSamples).to(device);
  model.eval();
  std::vector<double> seconds;
  for (int round = 0; round <= kRounds; ++round) {
    const double begin = steady_seconds();
    model.forward(input);
    if (round > 0) seconds.push_back(steady_seconds() - begin);  // The first one warms up.
  }
  model.train();
  return kForwardsOfStep * median(seconds) / static_cast<double>(input.size(0));
}

}  // namespace

int num_rank_threads(const Config& config, const World& world) { return config.threads > 0 ? config.threads : cores_of_rank(world); }

RunSetup::RunSetup(const Job& job_given, const DataSet& data_given, const World& here, const TrainOptions& how)
    : job(job_given),
      data(data_given),
      world(here),
      options(how),
      injection(injection_for_rank(job.faults, world.rank)),
      device(device_of_rank(job.devices, world)) {
  config = with_defaults(std::move(config));
  use_compute_threads(num_rank_threads(config, world));
  if (config.memory_limit > 0) limit_memory(config.memory_limit);
  if (world.status_fd >= 0) {
    status = StatusPage::open(::dup(world.status_fd), world.size);
    count_steps(status[world.rank]);
  }
  group =
      Group::create(world, {.backend = config.backend, .timeout_seconds = config.timeout, .device = make_device_link(job.devices, device)});
  take_folder();
  check_same_text(group, to_toml(config), "the configuration", "start all ranks with the same options and config.toml");
  if (config.device != "cpu") device_names = group.all_gather_text(device.str(), "the ranks' devices by name");
  total_steps = num_run_steps(job, data.train->num_samples());
  make_model();
  make_teacher();
  make_step();
  forecast = make_forecast(*this);
}

/// All ranks use the folder that rank 0 took.
void RunSetup::take_folder() {
  if (is_first() && !options.folder_is_held && (options.reports || config.run.empty())) {
    folder = std::make_unique<RunFolder>(config);
    config.run = folder->path();
    config.resume = folder->goes_on();
  }
  const std::string first = group.all_gather_text((config.resume ? "+" : "-") + config.run, "the run folder").front();
  config.resume = first.starts_with('+');
  config.resume_auto = false;
  if (config.run.empty()) config.run = first.substr(1);
  if (reports_here()) watched = std::make_unique<WatchedFolder>(config.run);
}

/// Model, layout and strategy; from here on `model` is this rank's part.
void RunSetup::make_model() {
  InitialModel initial = initial_model(config, data.train->shape());
  model = initial.model;
  began_with = std::move(initial.taken);
  frozen = std::move(initial.frozen);
  check_model(config, job.layout, *model);
  check_profile(options.forecast, *model);
  Augmentation(config.augment, data.train->shape(), config.seed);  // An Error comes before anything is written to the folder.
  if (job.pruning) prunable = prunable_tensors(*model, job.pruning->granularity);
  if (job.rounding) rounded = describe_rounding(config.quantize_aware, round_while_training(*model, *job.rounding));
  if (!config.hint.empty()) hints = std::make_unique<StudentHints>(*model, job.hints, *data.train);
  if (options.alter_model) altered = options.alter_model(*model);
  model->to(device);
  if (!config.teacher.empty() && config.teacher_answers == "auto" && !hints && world.rank == 0)
    student_seconds = measure_student(*model, *data.train, device);
  if (options.reports) check_goal(job, *model, *data.validation);
  parallel =
      parallelize(*model, job, data, group,
                  {.checks_pieces = options.reports, .shares_batch_norm = options.shares_batch_norm, .alter_part = options.alter_part});
  if (options.sequential) sequential = std::make_unique<SequentialRanks>(*model, *options.sequential, altered.borrowed, altered.order);
}

/// Asynchronous workers decide alone, since they have no group to agree in.
void RunSetup::make_teacher() {
  teacher = teacher_answers({.config = config,
                             .data = data,
                             .samples_of_run = run_sampler(job, data.train->num_samples()).samples_before(total_steps),
                             .pipelines = parallel.part->num_pipelines(),
                             .place = world.local_rank,
                             .size = world.local_size,
                             .has_loader = !is_served(config, job.layout) && config.virtual_time.empty(),
                             .student_seconds = student_seconds,
                             .group = options.num_served > 0 ? nullptr : &group,
                             .hints = hints.get()});
  if (!teacher) return;
  if (config.teacher_answers == "auto") config.teacher_answers = teacher->is_cached() ? "cached" : "asked";  // A resumed run does the same.
  if (const PipelineRunner* const pipeline = parallel.part->pipeline(); pipeline && !pipeline->has_last_stage()) teacher->forget();
}

void RunSetup::make_step() {
  if (config.noise_scale > 0 && options.reports) {
    noise = std::make_unique<NoiseMeter>(*model, *parallel.strategy, parallel.part->data(),
                                         NoiseMeterOptions{.every = config.noise_scale, .exchange_exactly = job.layout.compress != "none"});
  }
  if (prunable)
    pruner = std::make_unique<Pruner>(*job.pruning, pruning_schedule(job, total_steps), *prunable, *model, *parallel.strategy,
                                      parallel.part->data());
  const StepMaker make = options.make_step ? options.make_step : [](auto&&... given) {
    return std::make_unique<TrainingStep>(std::forward<decltype(given)>(given)...);
  };
  step = make(job, data.train->shape(), *model, *parallel.strategy, *parallel.part,
              {.total_steps = total_steps,
               .device = device,
               .slow_factor = injection.slow_factor,
               .microbatches = lockstep_layout().microbatches,
               .empty_forward = config.sync_batch_norm,
               .noise = noise.get(),
               .pruner = pruner.get(),
               .trace = options.reports ? &trace : nullptr,
               .sequential = sequential.get(),
               .loss = altered.loss,
               .teacher = teacher.get()});
}

LoaderOptions RunSetup::loader_options(int64_t first_step) const {
  return {.global_batch = config.global_batch,
          .stages = job.batch_stages,
          .seed = config.seed,
          .rank = parallel.part->pipeline_index(),
          .num_ranks = sequential ? sequential->num_shares() : parallel.part->num_pipelines(),
          .granularity = model->sample_granularity(),
          .pieces = config.accumulate * lockstep_layout().microbatches,
          .first_step = first_step,
          .end_step = total_steps,
          .reads_all_ranks = sequential != nullptr,
          .weights = job.shares.of(num_pipelines(lockstep_layout())),
          .augmentation = Augmentation(config.augment, data.train->shape(), config.seed),
          .answer = teacher && teacher->is_beside() ? [this](LoadedBatch& batch) { return teacher->beside(batch, data.train->shape()); }
                                                    : std::function<std::vector<float>(LoadedBatch&)>()};
}

EvaluationOptions RunSetup::evaluation_options() {
  ModelPart& part = *parallel.part;
  const int64_t pieces = int64_t{part.num_pipelines()} * config.accumulate * lockstep_layout().microbatches;
  EvaluationOptions how{
      .batch_size = evaluation_samples(config.global_batch, config.accumulate, config.global_batch / pieces, config.memory_limit > 0),
      .metrics = named_metrics(config.metrics, data.train->shape()),
      .index = part.pipeline_index(),
      .count = part.num_pipelines(),
      .finish = [this] { parallel.strategy->finish_evaluation(); }};
  if (part.pipeline()) how.begin = [&part] { part.pipeline()->begin_evaluation(); };
  how.forward = [this, &part](int64_t number, const std::function<at::Tensor()>& input) {
    at::Tensor output = part.pipeline() ? part.pipeline()->evaluate(number, input) : model->forward(input());
    if (output.defined()) output = part.whole_output(output);
    return part.here().tensor == 0 ? output : at::Tensor();
  };
  return how;
}

void begin_run(RunSetup& run) {
  if (run.reports_here() && run.forecast) write_file_atomically(run.config.run + "/plan.json", run.forecast->plan.dump(1) + "\n");
  if (run.reports_here()) write_run_config(run.config);
  if (run.reports_here()) write_file_atomically(run.config.run + "/" + kDataFile, description_file_text(run.data.train->describe()));
  if (run.config.eval_every == 0) {
    const int64_t epoch = run_sampler(run.job, run.data.train->num_samples()).steps_per_epoch();
    run.config.eval_every = std::min(round_up_to_exchange(run.job, epoch), std::max<int64_t>(1, run.total_steps));
  }
  if (run.reports_here())
    for (const std::string& sentence :
         {run.began_with, run.frozen, run.rounded, pruning_sentence(run), run.teacher ? run.teacher->sentence() : ""})
      if (!sentence.empty()) log_info(sentence);
  warn_of_run(run);
}

}  // namespace cohort
