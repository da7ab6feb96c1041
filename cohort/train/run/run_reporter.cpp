#include "cohort/train/run/run_reporter.h"

#include <torch/csrc/autograd/grad_mode.h>
#include <torch/types.h>
#include <unistd.h>

#include <chrono>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/log.h"
#include "cohort/base/memory.h"
#include "cohort/base/statistics.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/base/text/utc_time.h"
#include "cohort/checkpoint/checkpoint.h"
#include "cohort/comm/group_internals.h"
#include "cohort/comm/shm/memory_count.h"
#include "cohort/comm/shm/shm_arena.h"
#include "cohort/models/registry.h"
#include "cohort/parallel/parameters.h"
#include "cohort/report/report.h"
#include "cohort/report/run_trace.h"
#include "cohort/train/measured/exchange_advice.h"
#include "cohort/train/run/run_folder.h"
#include "cohort/train/tensor_division.h"
#include "cohort/version.h"
#include "cohort/world/start_time.h"

namespace cohort {
namespace {

/// The model that the checkpoint just written holds, for what one rank does alone.
std::shared_ptr<LayerGraph> whole_model(const RunSetup& run) {
  at::NoGradGuard no_grad;
  std::shared_ptr<LayerGraph> model = build_model(run.config.model, run.data.train->shape(), run.config.seed);
  const std::optional<Checkpoint> checkpoint = Checkpoint::open_latest(run.config.run + "/checkpoints");
  if (!checkpoint) fail(ErrorCode::kFailed, "no checkpoint in ", run.config.run, "/checkpoints, though one was written");
  for (const NamedTensor& tensor : distinct_parameters(*model)) checkpoint->read_whole("model/" + tensor.name, tensor.tensor.data_ptr());
  for (const NamedTensor& tensor : distinct_buffers(*model)) checkpoint->read_whole("model/" + tensor.name, tensor.tensor.data_ptr());
  return model;
}

std::string latest_checkpoint(const RunSetup& run) { return run.config.run + "/checkpoints/latest"; }

/// `mine` of every rank, in rank order. Collective.
RanksRecord gather_ranks(Group& group, const RankRecord& mine) {
  RanksRecord all;
  for (const std::string& text : group.all_gather_text(to_line(RanksRecord{{mine}}), "the ranks' totals"))
    all.ranks.push_back(record_from<RanksRecord>(Json::parse(text), "the ranks' totals").ranks.at(0));
  return all;
}

}  // namespace

RunReporter::RunReporter(RunSetup& run, const RunSaver& saver) : run_(run), saver_(saver), waste_(run.job.shares.are_equal()) {
  if (!run.reports_here()) return;
  metrics_ = std::make_unique<Metrics>(run.config.run, saver.first_step(), run.config.json);
  progress_ = std::make_unique<report::Progress>(run.total_steps, saver.first_step(), !run.config.quiet);
}

StartRecord RunReporter::describe_start() const {
  StartRecord start{
      .world_size = run_.world.size,
      .layout = to_json(run_.job.layout).dump(),
      .parameters = run_.parallel.num_parameters,
      .train_samples = run_.data.train->num_samples(),
      .val_samples = run_.data.validation->num_samples(),
      .model = run_.config.model,
      .data = run_.config.data,
      .global_batch = run_.config.global_batch,
      .steps = run_.total_steps,
      .optimizer = OptimizerRecord{.name = run_.config.optimizer, .lr = run_.config.lr, .weight_decay = run_.config.weight_decay},
      .backend = run_.group.backend_name(),
      .launcher = run_.world.launcher,
      .version = COHORT_VERSION,
      .torch = COHORT_BUILT_WITH_TORCH,
      .host = run_.world.host,
      .started = utc_now(),
      .devices = run_.device_names,
      .device_backend = run_.group.device_backend_name()};
  if (run_.model->loss()) start.loss = "own";
  if (run_.job.layout.tp > 1) start.tensor_parallel = division_record(run_.parallel.division, run_.job.layout);
  return start;
}

void RunReporter::start() {
  if (!run_.reports_here()) return;
  metrics_->event(describe_start());
  if (run_.config.resume) metrics_->event(ResumeRecord{saver_.first_step(), latest_checkpoint(run_), saver_.load_seconds()});
  for (const SettingChange& change : run_.options.changes) {
    log_info(to_text(change));
    metrics_->event(ChangeRecord{saver_.first_step(), change.setting, change.from, change.to});
  }
  if (run_.forecast) metrics_->event(run_.forecast->record);
  if (!run_.parallel.plan.pipeline.stages.empty()) metrics_->event(run_.parallel.plan.pipeline, /*to_stdout_too=*/false);
  metrics_->flush();
  progress_->note(concat("training ", run_.config.model, " (", with_commas(run_.parallel.num_parameters), " parameters) on ",
                         run_.config.data, " (", with_commas(run_.data.train->num_samples()), " samples), ", run_.world.size,
                         run_.world.size == 1 ? " worker" : " workers", ", ", run_.total_steps, " steps of ", run_.config.global_batch,
                         " samples, ", run_.config.optimizer, " with learning rate ", run_.config.lr,
                         run_.config.weight_decay > 0 ? concat(" and weight decay ", run_.config.weight_decay) : "",
                         run_.config.resume ? concat(", going on after step ", saver_.first_step()) : ""));
  if (run_.forecast) log_info(forecast_sentence(run_.forecast->record));
  if (!run_.config.json && run_.job.layout.tp > 1) progress_->note(describe(run_.parallel.division, run_.job.layout));
  if (!run_.config.json && !run_.parallel.plan.table.empty())
    progress_->note(run_.parallel.plan.table.substr(0, run_.parallel.plan.table.find_last_not_of('\n') + 1));
}

/// Once. A dynamic scale learns from the first overflows, so they are its own business; a fixed one does not.
void RunReporter::tell_skipped(int64_t step) {
  if (skip_is_told_ || run_.config.loss_scale == 0 || !run_.reports_here()) return;
  skip_is_told_ = true;
  log_warning(concat("step ", step, name_settings(" was skipped: its gradients overflowed fp16 with the fixed --loss-scale "),
                     run_.config.loss_scale, "; use a smaller one, or 0 for a dynamic one. How many were skipped stands at the end"));
}

void RunReporter::step(const StepResult& step, bool is_last) {
  const StepRecord& metrics = step.metrics;
  if (step_seconds_.empty()) first_step_seconds_ = seconds_since_command(run_.world);
  step_seconds_.push_back(metrics.step_seconds);
  const auto num_steps = static_cast<double>(step.num_steps);
  *totals_.samples += step.num_samples;
  totals_.data_seconds += num_steps * metrics.data_seconds;
  totals_.compute_seconds += num_steps * metrics.compute_seconds;
  totals_.exchange_seconds += num_steps * metrics.exchange_seconds;
  totals_.optimizer_seconds += num_steps * metrics.optimizer_seconds;
  waste_.add_step(metrics, step.num_samples / step.num_steps);
  if (step.skipped) tell_skipped(metrics.step);
  if (!run_.reports_here()) return;
  if (metrics.step % run_.config.log_every == 0 || is_last) metrics_->step(metrics);
  if (step.noise) metrics_->noise_scale(*step.noise);
}

void RunReporter::shares(int64_t from_step, const std::vector<double>& shares) {
  waste_.new_shares(from_step);
  if (run_.reports_here()) metrics_->event(SharesRecord{from_step, shares});
}

void RunReporter::evaluation(int64_t step, const Evaluation& evaluation) {
  last_evaluation_ = evaluation;
  evaluated_step_ = step;
  if (run_.reports_here()) metrics_->evaluation({step, evaluation.loss, evaluation.error, clock_ ? clock_() : kUnknown});
}

void RunReporter::note_evaluation() {
  if (run_.reports_here())
    progress_->note(concat("step ", evaluated_step_, ": validation loss ", last_evaluation_.loss,
                           last_evaluation_.has_error() ? concat(", error ", 100 * last_evaluation_.error, " %") : ""));
}

void RunReporter::progress(const StepRecord& metrics) {
  if (!run_.reports_here()) return;
  const bool has_error = evaluated_step_ >= 0 && last_evaluation_.has_error();
  progress_->update(metrics.step, metrics.loss, metrics.samples_per_second,
                    has_error ? std::optional<double>(last_evaluation_.error) : std::nullopt);
}

void RunReporter::checkpoint(int64_t step, const std::string& path, double seconds) {
  if (!run_.reports_here()) return;
  metrics_->event(CheckpointRecord{step, path, seconds});
  metrics_->flush();
}

void RunReporter::event(const RunEvent& event) {
  if (run_.reports_here()) metrics_->event(event, /*to_stdout_too=*/false);
}

void RunReporter::checkpoint_failed(int64_t step, const std::string& cause) {
  if (run_.reports_here()) metrics_->event(CheckpointFailedRecord{step, cause}, /*to_stdout_too=*/false);
}

/// Whether compressing would pay, for exchanges over a network.
void RunReporter::write_exchange_advice(double step_seconds) {
  if (run_.world.size == 1 || !run_.parallel.part->is_whole() || GroupInternals::arena(run_.group) || run_.job.layout.zero > 0 ||
      run_.job.layout.compress != "none" || run_.job.layout.sync != "step" || !run_.job.devices.all_cpu() || step_seconds_.empty())
    return;
  std::vector<std::vector<int64_t>> shapes;
  for (const NamedTensor& parameter : distinct_parameters(*run_.model))
    if (parameter.tensor.requires_grad()) shapes.push_back(parameter.tensor.sizes().vec());
  const double exposed = totals_.exchange_seconds / static_cast<double>(step_seconds_.size());
  const AdviceRecord advice = measure_advice(run_.group, {step_seconds, exposed}, gradient_buckets(shapes));
  if (!run_.is_first()) return;
  metrics_->event(advice);
  progress_->note(advice.sentence);
}

/// Workers that wait for slower ones, where each has the whole model. Collective.
void RunReporter::write_waste() {
  if (run_.world.size == 1 || !run_.parallel.part->is_whole()) return;
  PlannedWaste planned;  // Rank 0 has the forecast, and is the one that tells.
  if (run_.forecast) planned = {run_.forecast->record.predicted_equal_waste, run_.forecast->record.predicted_equal_step_seconds};
  const std::optional<WasteRecord> told = waste_.tell(run_.group, run_.config.global_batch, planned);
  if (!told || !run_.is_first()) return;
  metrics_->event(*told);
  progress_->note(told->sentence);
}

PartRecord RunReporter::describe_part() const {
  const auto place = [](int index, int size) { return concat(index + 1, " of ", size); };
  const ModelPart& held = *run_.parallel.part;
  const MeshPoint& here = held.here();
  PartRecord part{.data = place(here.data, held.mesh().data_size(here.pipe)),
                  .pipe = place(here.pipe, held.mesh().pipe_size()),
                  .tensor = place(here.tensor, held.mesh().tensor_size())};
  for (const LayerGraph::Layer& layer : run_.model->layers())
    if (layer.function) part.layers.push_back(layer.name);
  if (const PipelineRunner* const pipeline = run_.parallel.part->pipeline()) {
    part.stages.assign(pipeline->own_stages().begin(), pipeline->own_stages().end());
    part.waited_seconds = totals_.exchange_seconds;
    part.most_kept_micro_batches = pipeline->statistics().most_kept;
  }
  return part;
}

RankRecord RunReporter::describe_rank() const {
  const MemoryForecast forecast = run_.parallel.strategy->memory_forecast();
  RankRecord mine = totals_;
  mine.rank = run_.world.rank;
  mine.host = run_.world.host;
  if (!run_.device_names.empty()) mine.device = run_.device.str();
  mine.pid = ::getpid();
  mine.peak_memory_bytes = peak_memory_bytes();
  mine.weight_bytes = forecast.weight_bytes;
  mine.gradient_bytes = forecast.gradient_bytes;
  mine.optimizer_bytes = forecast.optimizer_bytes;
  if (run_.config.memory_limit > 0) {
    mine.memory_limit_bytes = run_.config.memory_limit;
    mine.peak_tensor_bytes = peak_counted_memory_bytes();
  }
  if (!run_.parallel.part->is_whole()) mine.part = describe_part();
  return mine;
}

DoneRecord RunReporter::describe_end(const TrainResult& result, const std::vector<RankRecord>& ranks) const {
  DoneRecord done{.step = result.steps, .val_loss = result.val_loss, .val_error = result.val_error, .seconds = result.seconds};
  if (!step_seconds_.empty()) {
    done.loss = result.loss;
    done.measured_step_seconds = result.step_seconds;
    done.first_step_seconds = first_step_seconds_;
  }
  if (run_.forecast) done.predicted_step_seconds = run_.forecast->record.predicted_step_seconds;
  else if (run_.parallel.plan.predicted_step_seconds > 0) done.predicted_step_seconds = run_.parallel.plan.predicted_step_seconds;
  for (const RankRecord& rank : ranks) done.peak_memory_bytes.push_back(rank.peak_memory_bytes.value());
  done.run = run_.config.run;
  if (clock_) done.virtual_seconds = clock_();
  if (needs_loss_scale(run_.job.precision)) done.skipped_steps = run_.step->skipped_steps();
  if (run_.noise) done.noise_scale = run_.noise->recent().noise_scale();
  return done;
}

/// The last lines of the run.
RanksRecord RunReporter::write_end(const TrainResult& result) {
  RanksRecord all = gather_ranks(run_.group, describe_rank());
  if (!run_.is_first()) return all;
  metrics_->event(all, /*to_stdout_too=*/false);
  if (!last_evaluation_.confusion.empty()) {
    std::vector<std::string> classes = run_.data.train->shape().class_names;
    for (size_t label = classes.size(); label < last_evaluation_.confusion.size(); ++label) classes.push_back(std::to_string(label));
    metrics_->event(ConfusionRecord{evaluated_step_, classes, last_evaluation_.confusion}, /*to_stdout_too=*/false);
  }
  if (result.interrupted) metrics_->event(InterruptedRecord{result.steps, latest_checkpoint(run_), run_.config.run});
  else metrics_->event(describe_end(result, all.ranks));
  metrics_->flush();
  return all;
}

/// The forecast of a step beside one that this run measured, for Perfetto. Collective.
void RunReporter::write_trace() {
  const StepTrace::Result measured = run_.trace.median_step(run_.group);
  if (!run_.is_first() || measured.step == 0) return;
  report::TraceLanes predicted;
  if (run_.forecast)
    predicted = report::predicted_lanes(run_.forecast->record, run_.forecast->timeline, run_.config.accumulate, run_.world.size);
  const std::string path = run_.config.run + "/trace.json";
  try {
    write_file_atomically(path, report::run_trace(predicted, measured.lanes, concat("measured, step ", measured.step)).dump() + "\n");
  } catch (const Error& error) {
    log_warning(concat("the training is complete, its trace is not: ", error.what()));
  }
}

void RunReporter::write_text_sample(int64_t step, LayerGraph& model) {
  const std::string prompt = run_.config.prompt.empty() ? first_text(*run_.data.validation, 32) : run_.config.prompt;
  const auto text = sample_text(model, run_.data.train->shape(), prompt, run_.config.sample_bytes, 0.8, run_.config.seed);
  if (!text)
    return log_info(
        name_settings("the output of the model is no scores of the next byte, so it writes no text (--sample-bytes 0 does not ask)"));
  metrics_->event(SampleRecord{step, prompt, *text}, /*to_stdout_too=*/false);
  if (!run_.config.json) progress_->note("the model writes: " + printable(prompt + *text));
}

void RunReporter::end(TrainResult& result) {
  result.seconds = seconds_since(run_.began);
  result.step_seconds = median(step_seconds_);
  if (!run_.options.reports) return;
  if (run_.data.train->shape().kind == DataShape::Kind::kText && run_.config.sample_bytes > 0) {
    if (!run_.parallel.part->is_whole()) {
      if (run_.is_first() && saver_.saved_step() == result.steps) write_text_sample(result.steps, *whole_model(run_));
    } else {
      run_.parallel.strategy->gather_weights();
      if (run_.is_first()) write_text_sample(result.steps, *run_.model);
      run_.parallel.strategy->release_weights();
    }
  }
  write_exchange_advice(result.step_seconds);
  write_waste();
  write_trace();
  const RanksRecord all = write_end(result);
  if (!run_.is_first()) return;
  progress_->finish();
  if (const std::string missing = metrics_->finish(); !missing.empty())
    log_warning(concat("the training has ended and is saved, but ", missing));
  if (run_.forecast && !step_seconds_.empty()) {
    log_info(outcome_sentence(run_.forecast->record, result.step_seconds));
    keep_error(run_, result.step_seconds, static_cast<int64_t>(step_seconds_.size()), all.ranks);
  }
  std::string report = "none";
  try {
    report = report::write_report(run_.config.run);
  } catch (const std::exception& error) {
    log_warning(concat("the training is complete and saved, its report is not: ", error.what()));
  }
  if (result.interrupted)
    log_info(concat("interrupted after step ", result.steps, "; go on with: cohort train ", run_.config.run, "/config.toml --resume"));
  else
    log_info(concat("done: validation loss ", result.val_loss,
                    last_evaluation_.has_error() ? concat(", accuracy ", 100 * (1 - result.val_error), " %") : "", " after ", result.steps,
                    " steps in ", human_seconds(result.seconds),
                    run_.step->skipped_steps() > 0 ? concat(", ", run_.step->skipped_steps(), " of them skipped (fp16 overflow)") : "",
                    "; report: ", report));
}

}  // namespace cohort
