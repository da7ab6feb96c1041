#include "cohort/train/check_run.h"

#include <cmath>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/comm/nccl.h"
#include "cohort/job/refusals.h"
#include "cohort/job/specs/batch_schedule.h"
#include "cohort/job/specs/small_specs.h"
#include "cohort/job/specs/sync_mode.h"
#include "cohort/models/graph/model_errors.h"
#include "cohort/models/metric/metrics.h"
#include "cohort/models/registry.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/parallel/compress/compressor.h"
#include "cohort/schedule/schedule.h"
#include "cohort/schedule/scheduler.h"
#include "cohort/train/advice/balance.h"
#include "cohort/train/distil/teacher.h"
#include "cohort/train/model/checkpoint_pieces.h"
#include "cohort/train/model/evaluate.h"
#include "cohort/train/model/precision.h"

namespace cohort {
namespace {

void check_schedule_name(const Layout& layout) {
  if (layout.pp == 1) return;
  if (layout.schedule.ends_with(".json")) check_schedule(read_schedule_file(layout.schedule));
  else num_stages_of(layout.schedule, layout.pp);  // Checks the name.
}

/// Touches no GPU, since ranks are not forked yet.
void check_backend(const Config& config) {
  if (config.backend == "nccl" && !why_no_nccl().empty()) fail(ErrorCode::kBadInput, name_settings("--backend nccl: "), why_no_nccl());
}

void check_faults(const Job& job) {
  if (const int64_t rank = last_injected_rank(job.faults); rank >= job.num_ranks())
    fail(ErrorCode::kBadInput, name_settings("--inject "), job.config.inject, ": there is no rank ", rank, ", the last of ",
         job.num_ranks(), " is rank ", job.num_ranks() - 1);
}

/// Conditions for every model; the ranks check those of a norm that keeps samples together.
void check_batch(const Config& config, const Layout& layout) {
  const int num_shares = num_pipelines(layout);
  if (config.shares == "equal" && config.global_batch < num_shares)
    fail(ErrorCode::kBadInput, name_settings("--global-batch "), config.global_batch, " leaves some of ", num_shares,
         layout.is_model_parallel() ? " replicas" : " ranks", " without samples; use ", num_shares, " or more, or fewer workers");
  // The last batch of an epoch may be smaller, and then has fewer pieces.
  const int64_t pieces = int64_t{config.accumulate} * layout.microbatches;
  const int64_t least = (config.shares == "equal" ? num_shares : 1) * pieces;
  if (pieces > 1 && config.global_batch < least)
    fail(ErrorCode::kBadInput, config.accumulate > 1 ? concat(name_settings("--accumulate "), config.accumulate) : "",
         config.accumulate > 1 && layout.microbatches > 1 ? " with " : "",
         layout.microbatches > 1 ? concat(name_settings("--layout microbatches="), layout.microbatches) : "",
         name_settings(" cuts --global-batch "), config.global_batch, " into ", least, " pieces",
         num_shares > 1 && least > pieces ? concat(" (", pieces, " for each of ", num_shares, " shares)") : "",
         name_settings(", more than it has samples; use fewer pieces, or --global-batch "), least, " or more");
}

void check_virtual(const Job& job) {
  if (!job.clock) return;
  const VirtualSpec& spec = *job.clock;
  if (spec.workers > job.config.global_batch)
    fail(ErrorCode::kBadInput, name_settings("--virtual workers="), spec.workers, name_settings(" with --global-batch "),
         job.config.global_batch,
         name_settings(": a step is divided into one work item of at least one sample for each worker; use --global-batch "), spec.workers,
         " or more, or fewer workers");
}

/// Between exchanges workers have different weights, which cannot be evaluated, saved or returned.
void check_exchanges(const Job& job) {
  const Config& config = job.config;
  const int64_t every = steps_between_exchanges(job.layout.sync);
  for (const auto& [name, value] :
       {std::pair("steps", config.steps), std::pair("eval-every", config.eval_every),
        std::pair("checkpoint-every", config.checkpoint_every), std::pair("log-every", config.log_every == 1 ? 0 : config.log_every)}) {
    if (value <= 0 || value % every == 0) continue;
    const int64_t below = value / every * every;
    fail(ErrorCode::kBadInput, name_settings(concat("--", name)), " ", value, name_settings(" with --layout sync="), job.layout.sync,
         ": workers have the same weights after every ", every, " steps alone; use ", below > 0 ? concat(below, " or ") : "",
         below + every);
  }
}

/// Patience for more evaluations than the run has would do nothing.
void check_patience(const Job& job, int64_t steps, int64_t num_samples) {
  const Config& config = job.config;
  if (config.patience == 0) return;
  const int64_t epoch = round_up_to_exchange(job, run_sampler(job, num_samples).steps_per_epoch());
  const int64_t every = config.eval_every > 0 ? config.eval_every : epoch, evaluations = (steps + every - 1) / every;
  if (config.patience >= evaluations)
    fail(ErrorCode::kBadInput, name_settings("--patience "), config.patience, " would do nothing here: the run has ", evaluations,
         evaluations == 1 ? " evaluation" : " evaluations", name_settings("; use a smaller one, or a smaller --eval-every (now "), every,
         " steps), or leave it out");
}

void check_quorum(const Job& job) {
  const SyncMode& sync = job.layout.sync;
  if (sync.quorum == 0) return;
  const int workers = job.clock ? job.clock->workers : job.num_ranks();
  if (sync.quorum > workers)
    fail(ErrorCode::kBadInput, name_settings("--layout sync="), job.layout.sync, ": a quorum of ", sync.quorum, " with ", workers,
         workers == 1 ? " worker" : " workers", " never comes; use quorum=", workers, " or less, or more workers");
  const int64_t every = steps_per_round(sync), below = job.config.steps / every * every;
  if (job.config.steps % every != 0)
    fail(ErrorCode::kBadInput, name_settings("--steps "), job.config.steps, name_settings(" with --layout sync="), job.layout.sync,
         ": workers hand over what ", every, " steps gave; use ", below > 0 ? concat(below, " or ") : "", below + every);
}

double epochs_of(const Config& config) { return config.epochs > 0 ? config.epochs : 1; }

int64_t steps_of_epochs(const Job& job, int64_t num_samples) {
  const Config& config = job.config;
  const Sampler sampler = run_sampler(job, num_samples);
  if (!job.batch_stages.empty())
    return sampler.steps_until(static_cast<int64_t>(std::ceil(epochs_of(config) * static_cast<double>(num_samples))));
  return static_cast<int64_t>(std::ceil(epochs_of(config) * static_cast<double>(sampler.steps_per_epoch())));
}

/// The batch must not outgrow the data, and must grow before the run ends.
void check_batch_schedule(const Job& job, int64_t num_samples) {
  const Config& config = job.config;
  const std::vector<BatchStage>& stages = job.batch_stages;
  if (const int64_t factor = largest_batch_factor(stages); factor > num_samples / config.global_batch)
    fail(ErrorCode::kBadInput, name_settings("--batch-schedule "), config.batch_schedule, ": ", factor,
         name_settings(" times --global-batch "), config.global_batch, ", and the data has ", num_samples,
         " training samples, of which a batch takes each at most once; the largest factor is ", num_samples / config.global_batch);
  const int64_t steps = num_run_steps(job, num_samples);
  if (!stages.empty() && stages.back().first_step >= steps)
    fail(ErrorCode::kBadInput, name_settings("--batch-schedule "), config.batch_schedule, ": the batch would grow after ",
         stages.back().first_step, " steps, and the run has ", steps, name_settings("; use a smaller step, or more --steps"));
}

}  // namespace

Sampler run_sampler(const Job& job, int64_t num_samples) {
  return {num_samples, job.config.global_batch, job.config.seed, /*shuffle=*/true, Sampler::Batches::kWithinEpochs, job.batch_stages};
}

int64_t round_up_to_exchange(const Job& job, int64_t steps) {
  const int64_t every = steps_per_round(job.layout.sync);
  return (steps + every - 1) / every * every;
}

int64_t num_run_steps(const Job& job, int64_t num_samples) {
  return job.config.steps > 0 ? job.config.steps : round_up_to_exchange(job, steps_of_epochs(job, num_samples));
}

std::string rounded_steps_sentence(const Job& job, int64_t num_samples) {
  if (job.config.steps > 0) return "";
  const int64_t asked = steps_of_epochs(job, num_samples), steps = num_run_steps(job, num_samples);
  if (steps == asked) return "";
  return concat(name_settings("--epochs "), epochs_of(job.config), asked == 1 ? " is 1 step" : concat(" are ", asked, " steps"),
                name_settings(", and with --layout sync="), job.layout.sync, " a run ends with an exchange: it has ", steps);
}

void check_data(const Job& job, const DataSet& data) {
  label_smoothing_over_all(job.config.label_smoothing, job.config.label_smoothing_over,
                           data.train->shape().num_classes);  // Checks the limit.
  const Config& config = job.config;
  const int64_t num_samples = data.train->num_samples();
  if (config.global_batch > num_samples)
    fail(ErrorCode::kBadInput, name_settings("--global-batch "), config.global_batch, ": the data has ", num_samples,
         name_settings(" training samples, and a batch takes each at most once; use --global-batch "), num_samples, " or less");
  check_batch_schedule(job, num_samples);
  const DataShape& shape = data.train->shape();
  if (job.goal && job.goal->metric == "val_precision" && !shape.labels)
    fail(ErrorCode::kBadInput, name_settings("--goal "), config.goal,
         ": an average precision is of labels (task=labels), and these data have ",
         shape.regression ? "numbers to predict" : "one class for each target", "; use val_error");
  const int64_t sample_bytes = shape.input_elements() * (shape.kind == DataShape::Kind::kText ? 8 : 4);
  if (config.memory_limit > 0 && config.memory_limit < sample_bytes)
    fail(ErrorCode::kBadInput, name_settings("--memory-limit "), config.memory_limit, ": one sample of the data is a tensor of ",
         sample_bytes, " bytes, so nothing trains in less; the limit is in bytes, as 2000000000 for 2 GB");
  const int64_t steps = num_run_steps(job, num_samples);
  if (config.noise_scale > steps)
    fail(ErrorCode::kBadInput, name_settings("--noise-scale "), config.noise_scale, " measures once in ", config.noise_scale,
         " steps, and the run has ", steps, name_settings(", so it would measure nothing; use --noise-scale "), steps,
         " or less, or leave it out");
  check_patience(job, steps, num_samples);
  check_teacher(config, data);
  if (config.test_samples > 0 && !data.test)  // "all" is valid without a test set.
    fail(ErrorCode::kBadInput, name_settings("--test-samples "), config.test_samples, ": ", config.data,
         " has no test set (docs/formats/data.md says which files are one); leave it out");
  for (const InjectedFault& fault : job.faults)
    if (fault.kind == "kill" && fault.value >= static_cast<double>(steps))
      fail(ErrorCode::kBadInput, name_settings("--inject kill:"), fault.rank, ":", fault.value,
           ": steps are counted from 0 here, and the last of ", steps, " is ", steps - 1);
}

void check_model(const Config& config, const Layout& layout, const LayerGraph& model) {
  const std::vector<NamedTensor> parameters = distinct_parameters(model);
  if (parameters.empty())
    fail(ErrorCode::kBadInput, model.title(), " has no parameters, so there is nothing to train; register its modules and tensors ",
         name_settings("(register_module, register_parameter; LayerGraph: add(name, kind, module)), or give another --model"));
  if (trained_parameters(parameters).empty())
    fail(ErrorCode::kBadInput, model.title(), " has no parameter that trains: ", parameters.front().name, " and all others of its ",
         parameters.size(), name_settings(" are frozen; call requires_grad_(true) on those that are to train, or give another --model"));
  const auto check_types = [&](const std::vector<NamedTensor>& tensors, const char* what) {
    for (const NamedTensor& named : tensors)
      if (!stored_type(named.tensor.scalar_type()))
        fail(ErrorCode::kBadInput, model.title(), ": the ", what, " ", named.name, " is ", describe_tensor(named.tensor),
             ", which no checkpoint could hold; keep it as real numbers (torch::view_as_real)");
  };
  check_types(parameters, "parameter");
  check_types(distinct_buffers(model), "buffer");
  if (layout.pp > 1 && model.layers().size() == 1)
    fail(ErrorCode::kBadInput, name_settings("--layout: pp="), layout.pp, " cannot cut ", config.model,
         ", which is one layer: let its factory return a torch::nn::Sequential or a cohort::LayerGraph of its layers, or use dp");
  if (config.label_smoothing > 0 && model.loss())
    fail(ErrorCode::kBadInput, name_settings("--label-smoothing "), config.label_smoothing, " is about the cross-entropy, and ",
         config.model, model.loss_name() == "own" ? " has a loss of its own" : concat(" trains on the loss ", model.loss_name()),
         "; leave it out");
}

void check_goal(const Job& job, LayerGraph& model, const DataSource& validation) {
  named_metrics(job.config.metrics, validation.shape());  // Checks the names.
  if (!job.config.metrics.empty() && model.loss() && !gives_scores(model, validation))
    fail(ErrorCode::kBadInput, name_settings("--metrics "), job.config.metrics, ": the output of ", job.config.model,
         validation.shape().regression ? " is not one number for each target"
         : validation.shape().labels   ? " is not one score for each label"
                                       : " does not have class scores",
         "; leave the option out");
  if (!model.loss() || !job.goal || (job.goal->metric != "val_error" && job.goal->metric != "val_precision") ||
      gives_scores(model, validation))
    return;
  fail(ErrorCode::kBadInput, name_settings("--goal "), job.config.goal, ": the output of ", job.config.model,
       validation.shape().labels ? " is not one score for each label" : " does not have class scores", ", so no ",
       job.goal->metric == "val_error" ? "error" : "precision", " is known; use val_loss");
}

void check_run(const Job& job, std::optional<bool> is_text) {
  const Config& config = job.config;
  const Layout& layout = job.layout;
  find_model(config.model.substr(0, config.model.find(':')));
  check_batch(config, layout);
  check_exchanges(job);
  check_quorum(job);
  check_virtual(job);
  check_faults(job);
  check_compressor(layout.compress);
  job.shares.of(job.num_ranks());
  job.devices.check(job.num_ranks());
  check_refusals(job.situation(is_text));
  check_schedule_name(layout);
  check_backend(config);
  check_options(job.situation(is_text));
  check_devices(job.devices);
}

void check_job(const Job& job, const DataSet& data) {
  check_config(job.config);  // With what its layout said of some settings.
  check_data(job, data);
  check_run(job, data.train->shape().kind == DataShape::Kind::kText);
}

}  // namespace cohort
