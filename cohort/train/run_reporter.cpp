#include "cohort/train/run_reporter.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/types.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/statistics.h"
#include "cohort/base/system/machine.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/text.h"
#include "cohort/checkpoint/checkpoint.h"
#include "cohort/comm/group_internals.h"
#include "cohort/comm/link.h"
#include "cohort/comm/shm/shm_arena.h"
#include "cohort/job/option_rules.h"
#include "cohort/job/resumed_config.h"
#include "cohort/models/registry.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/report/report.h"
#include "cohort/runlog/run_trace.h"
#include "cohort/train/run_folder.h"
#include "cohort/train/run_records.h"
#include "cohort/train/step/parallelize.h"
#include "cohort/world/process.h"

namespace cohort {
namespace {

constexpr int64_t kLeastStepsToJudge = 100;  // Or an epoch.

/// The whole model, read from the checkpoint just written, for a rank that holds only a part of it.
std::shared_ptr<LayerGraph> whole_model(const RunSetup& run) {
  at::NoGradGuard no_grad;
  std::shared_ptr<LayerGraph> model = build_model(run.config.model, run.data.train->shape(), run.config.seed);
  const std::optional<Checkpoint> checkpoint = Checkpoint::open_latest(run.config.run + "/checkpoints");
  if (!checkpoint) fail(ErrorCode::kFailed, "no checkpoint in ", run.config.run, "/checkpoints, though one was written");
  for (const NamedTensor& tensor : distinct_parameters(*model)) checkpoint->read_whole("model/" + tensor.name, tensor.tensor.data_ptr());
  for (const NamedTensor& tensor : distinct_buffers(*model)) checkpoint->read_whole("model/" + tensor.name, tensor.tensor.data_ptr());
  return model;
}

/// The settings that have an effect in this run, as its config.toml writes them.
std::vector<std::pair<std::string, std::string>> settings_of_session(const Config& config) {
  const Config lasting = persistent_config(config);
  const Situation situation = situation_of(lasting);
  std::vector<std::pair<std::string, std::string>> values;
  for (const Setting& setting : settings())
    if (is_given(lasting, setting) || acts(setting.name, situation)) values.emplace_back(setting.name, setting.get(lasting));
  return values;
}

}  // namespace

RunReporter::RunReporter(RunSetup& run, const RunSaver& saver, PaceOfSync pace)
    : run_(run), saver_(saver), pace_(std::move(pace)), waste_(run.job.shares.are_equal()) {
  if (!run.reports_here()) return;
  const ResumedAt resumed{saver.first_step(), run.config.resume && !saver.reason_to_end().empty()};
  metrics_ = std::make_unique<Metrics>(run.config.run, resumed, run.config.json, run.data.train->shape().labels);
  progress_ = std::make_unique<Progress>(run.total_steps, saver.first_step(), !run.config.quiet);
}

void RunReporter::start() {
  if (!run_.reports_here()) return;
  write_start();
  if (run_.config.serve != Config::kNotServed) serve();
  progress_->note(start_sentence());
  if (std::getenv(kThreadsSleepVariable) && at::get_num_threads() > 1)
    progress_->note("other programs were running at the start: threads wait for one another asleep (OMP_WAIT_POLICY=passive)");
  note_data();
  if (run_.forecast) log_info(forecast_sentence(run_.forecast->record));
  if (run_.config.json) return;
  if (run_.job.layout.tp > 1) progress_->note(describe(run_.parallel.division, run_.job.layout));
  if (const std::string& table = run_.parallel.plan.table; !table.empty())
    progress_->note(table.substr(0, table.find_last_not_of('\n') + 1));
}

void RunReporter::write_start() {
  metrics_->event(start_record(run_));
  metrics_->begin_session(settings_of_session(run_.config));
  if (run_.config.resume) metrics_->event(ResumeRecord{saver_.first_step(), saver_.loaded(), saver_.load_seconds()});
  for (const SettingChange& change : run_.options.changes) {
    log_info(to_text(change));
    metrics_->event(ChangeRecord{saver_.first_step(), change.setting, change.from, change.to});
  }
  if (run_.forecast) metrics_->event(run_.forecast->record);
  if (!run_.parallel.plan.pipeline.stages.empty()) metrics_->event(run_.parallel.plan.pipeline, /*to_stdout_too=*/false);
  metrics_->flush();
}

std::string RunReporter::start_sentence() const {
  const Config& config = run_.config;
  return concat("training ", config.model, " (", with_commas(run_.parallel.num_parameters), " parameters) on ", config.data, " (",
                with_commas(run_.data.train->num_samples()), " samples), ", run_.num_workers(),
                run_.num_workers() == 1 ? " worker" : " workers", ", ", run_.total_steps, " steps of ", config.global_batch, " samples",
                config.batch_schedule.empty() ? "" : concat(", growing by ", config.batch_schedule), ", ", config.optimizer,
                " with learning rate ", config.lr, config.weight_decay > 0 ? concat(" and weight decay ", config.weight_decay) : "",
                config.resume ? concat(", going on after step ", saver_.first_step()) : "");
}

/// Printed to stderr whatever COHORT_LOG says: without its address the page is of no use.
void RunReporter::serve() {
  live_ = std::make_unique<report::LiveReport>(run_.config.run, run_.config.serve);
  const int port = live_->port();
  std::fprintf(stderr, "cohort: live report: %s (on this host alone; from another one: ssh -L %d:127.0.0.1:%d %s)\n",
               live_->address().c_str(), port, port, printable(run_.world.host).c_str());
}

/// Notes how a table's columns were read, and warns of samples that --skip-bad left out, with the first few by name.
void RunReporter::note_data() const {
  if (const std::string text = columns_text(run_.data.train->describe()); !text.empty()) progress_->note(text);
  constexpr size_t kMaxNamed = 3;
  const SkippedData& skipped = run_.data.skipped;
  if (skipped.count == 0) return;
  const std::vector<std::string> named(skipped.first.begin(),
                                       skipped.first.begin() + static_cast<std::ptrdiff_t>(std::min(kMaxNamed, skipped.first.size())));
  log_warning(concat(with_commas(skipped.count), skipped.count == 1 ? " picture or row was" : " pictures or rows were", " left out",
                     name_settings(" (--skip-bad): "), join(named, "; "),
                     skipped.count > static_cast<int64_t>(kMaxNamed) ? "; and others, of which metrics.jsonl names more" : ""));
}

/// Warns once. A dynamic scale finds its value by the first overflows, which are therefore no news; a fixed one does not.
void RunReporter::warn_of_skipped(int64_t step) {
  if (skip_was_reported_ || run_.config.loss_scale == 0 || !run_.reports_here()) return;
  skip_was_reported_ = true;
  log_warning(concat("step ", step, name_settings(" was skipped: its gradients overflowed fp16 with the fixed --loss-scale "),
                     run_.config.loss_scale, "; use a smaller one, or 0 for a dynamic one. How many were skipped stands at the end"));
}

void RunReporter::step(const StepResult& step, bool is_last) {
  const StepRecord& metrics = step.metrics;
  if (step_seconds_.empty()) first_step_seconds_ = seconds_since_command(run_.world);
  if (!step_seconds_.empty()) own_seconds_.push_back(metrics.step_seconds - metrics.exchange_seconds);
  step_seconds_.push_back(metrics.step_seconds);
  const auto num_steps = static_cast<double>(step.num_steps);
  *totals_.samples += step.num_samples;
  totals_.data_seconds += num_steps * metrics.data_seconds;
  totals_.compute_seconds += num_steps * metrics.compute_seconds;
  totals_.exchange_seconds += num_steps * metrics.exchange_seconds;
  totals_.optimizer_seconds += num_steps * metrics.optimizer_seconds;
  waste_.add_step(metrics, step.num_samples / step.num_steps);
  if (step.skipped) warn_of_skipped(metrics.step);
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
  if (run_.reports_here())
    metrics_->evaluation({step, evaluation.loss, evaluation.error, evaluation.precision, clock_ ? clock_() : kUnknown, evaluation.metrics});
}

void RunReporter::note_evaluation() {
  if (run_.reports_here())
    progress_->note(concat("step ", evaluated_step_, ": validation loss ", last_evaluation_.loss,
                           error_text(run_.data.train->shape(), last_evaluation_), metrics_text(last_evaluation_.metrics)));
}

void RunReporter::progress(const StepRecord& metrics) {
  if (!run_.reports_here()) return;
  // The bar shows percent.
  const bool has_error = evaluated_step_ >= 0 && last_evaluation_.has_error() && !run_.data.train->shape().regression;
  progress_->update(metrics.step, metrics.loss, metrics.samples_per_second,
                    has_error ? std::optional<double>(last_evaluation_.error) : std::nullopt);
}

void RunReporter::checkpoint(int64_t step, const std::string& path, double seconds) {
  if (!run_.reports_here()) return;
  metrics_->event(CheckpointRecord{step, path, seconds});
  metrics_->flush();
}

void RunReporter::event(const RunEvent& event) {
  if (const auto* const record = std::get_if<AsyncRecord>(&event)) async_record_ = *record;
  if (run_.reports_here()) metrics_->event(event, /*to_stdout_too=*/false);
}

/// True for whole models in the hosts' memory that exchange all of their gradients; advice on exchanges is about these only.
bool RunReporter::has_plain_replicas() const {
  return run_.parallel.part->is_whole() && run_.job.layout.zero == 0 && run_.job.devices.all_cpu();
}

/// Advises whether to compress gradients, where they pass a network or are compressed already.
void RunReporter::write_exchange_advice(double step_seconds, const std::optional<LinkEstimate>& link) {
  if (!link || !is_step(run_.job.layout.sync)) return;
  std::vector<std::vector<int64_t>> shapes;
  for (const NamedTensor& parameter : distinct_parameters(*run_.model))
    if (parameter.tensor.requires_grad()) shapes.push_back(parameter.tensor.sizes().vec());
  const double exposed = totals_.exchange_seconds / static_cast<double>(step_seconds_.size());
  const AdviceRecord advice = measure_advice(run_.group, {step_seconds, exposed, run_.job.layout.compress}, gradient_buckets(shapes), link);
  if (!run_.is_first()) return;
  metrics_->event(advice);
  progress_->note(advice.sentence);
}

/// Advises which sync mode suits these workers, where every mode would work with the rest of the layout. Collective.
void RunReporter::write_sync_advice(double step_seconds, const LinkEstimate& link) {
  const Layout& layout = run_.job.layout;
  if (run_.num_workers() == 1 && run_.config.virtual_time.empty()) return;
  if (!has_plain_replicas() || layout.compress != "none" || !run_.job.shares.are_equal() || run_.job.shares.automatic ||
      run_.config.accumulate > 1 || needs_loss_scale(run_.job.precision))
    return;
  const auto batch = static_cast<double>(run_.config.global_batch);
  const int workers = run_.job.clock ? run_.job.clock->workers : run_.num_workers();
  std::optional<SyncConditions> conditions = async_record_         ? conditions_of_workers(*async_record_, std::ceil(batch / workers))
                                             : run_.world.size > 1 ? conditions_of_ranks(run_.group, own_seconds_, link)
                                                                   : std::nullopt;
  if (!conditions || !run_.is_first()) return;
  conditions->global_batch = run_.config.global_batch, conditions->granularity = run_.model->sample_granularity();
  // More workers may have joined than a batch can be divided into.
  if (conditions->clock.workers < 2 || conditions->global_batch / conditions->granularity < conditions->clock.workers) return;
  conditions->pull_bytes = conditions->push_bytes = run_.parallel.num_parameters * static_cast<int64_t>(sizeof(float));
  if (is_step(layout.sync) && !async_record_) conditions->step_seconds = step_seconds;
  const SyncAdviceRecord advice = advise_sync(*conditions, to_text(layout.sync), pace_);
  metrics_->event(advice, /*to_stdout_too=*/false);
  progress_->note(advice.sentence);
}

/// Reports how long workers waited for slower ones, where each has the whole model. Collective.
void RunReporter::write_waste() {
  if (run_.world.size == 1 || !run_.parallel.part->is_whole()) return;
  PlannedWaste planned;  // Known to rank 0, which has the forecast and writes the record.
  if (run_.forecast) planned = {run_.forecast->record.predicted_equal_waste, run_.forecast->record.predicted_equal_step_seconds};
  const std::optional<WasteRecord> waste = waste_.summary(run_.group, run_.config.global_batch, planned);
  if (!waste || !run_.is_first()) return;
  metrics_->event(*waste);
  progress_->note(waste->sentence);
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
  done.reason = result.reason;
  done.metrics = result.metrics, done.val_precision = result.val_precision;
  if (const EvaluatedStep& best = saver_.best().best(); best.step >= 0) {
    done.best_step = best.step;
    done.best_val_loss = best.val_loss;
  }
  done.guess_val_error = guessing_.error, done.guess_val_precision = guessing_.precision;
  done.learnt_nothing = guessing_.sentence;
  if (result.test_samples > 0) {
    done.test_samples = result.test_samples;
    done.test_loss = result.test_loss;
    done.test_error = result.test_error, done.test_precision = result.test_precision;
    done.test_metrics = result.test_metrics;
  }
  return done;
}

/// Writes the records of the end, and returns the totals of all ranks. Collective.
RanksRecord RunReporter::write_end(const TrainResult& result) {
  RanksRecord all = gather_ranks(run_.group, rank_record(run_, totals_));
  if (!run_.is_first()) return all;
  metrics_->event(all, /*to_stdout_too=*/false);
  if (!last_evaluation_.confusion.empty()) {
    std::vector<std::string> classes = run_.data.train->shape().class_names;
    for (size_t label = classes.size(); label < last_evaluation_.confusion.size(); ++label) classes.push_back(std::to_string(label));
    metrics_->event(ConfusionRecord{evaluated_step_, classes, last_evaluation_.confusion}, /*to_stdout_too=*/false);
  }
  if (!last_evaluation_.mistakes.empty())
    metrics_->mistakes(mistakes_record(evaluated_step_, last_evaluation_.mistakes, *run_.data.validation, run_.data.train->describe()));
  if (result.interrupted) metrics_->event(InterruptedRecord{result.steps, saver_.saved(), run_.config.run});
  else metrics_->event(describe_end(result, all.ranks));
  metrics_->end_session(!result.interrupted);
  metrics_->flush();
  return all;
}

/// Writes trace.json for Perfetto: the forecast of a step beside one that this run measured. Collective.
void RunReporter::write_trace() {
  const StepTrace::Result measured = run_.trace.median_step(run_.group);
  if (!run_.is_first() || measured.step == 0) return;
  TraceLanes predicted;
  if (run_.forecast) predicted = predicted_lanes(run_.forecast->record, run_.forecast->timeline, run_.config.accumulate, run_.world.size);
  const std::string path = run_.config.run + "/trace.json";
  try {
    write_file_atomically(path, run_trace(predicted, measured.lanes, concat("measured, step ", measured.step)).dump() + "\n");
  } catch (const Error& error) {
    log_warning(concat("the training is complete, its trace is not: ", error.what()));
  }
}

void RunReporter::write_text_sample(int64_t step, LayerGraph& model) {
  const std::string prompt = run_.config.prompt.empty() ? first_text(*run_.data.validation, 32) : run_.config.prompt;
  const auto text =
      sample_text(model, run_.data.train->shape(), prompt,
                  {.num_bytes = run_.config.sample_bytes, .seed = run_.config.seed, .vocabulary = run_.data.train->describe().vocabulary});
  if (!text)
    return log_info(name_settings("the model does not output next-byte scores, so it writes no text (--sample-bytes 0 turns this off)"));
  metrics_->event(SampleRecord{step, prompt, *text}, /*to_stdout_too=*/false);
  if (!run_.config.json) progress_->note("the model writes: " + printable(prompt + *text));
}

void RunReporter::end(TrainResult& result) {
  result.seconds = seconds_since(run_.began);
  result.step_seconds = median(step_seconds_);
  if (!run_.options.reports) return;
  write_text_samples(result.steps);
  write_advice(result.step_seconds);
  write_trace();
  compare_with_guessing(result);
  const RanksRecord all = write_end(result);
  if (!run_.is_first()) return;
  progress_->finish();
  if (const std::string missing = metrics_->finish(); !missing.empty())
    log_warning(concat("the training has ended and is saved, but ", missing));
  if (run_.forecast && !step_seconds_.empty()) {
    log_info(outcome_sentence(run_.forecast->record, result.step_seconds));
    append_forecast_error(run_, result.step_seconds, static_cast<int64_t>(step_seconds_.size()), all.ranks);
  }
  const std::string report = write_report();
  if (result.interrupted) {
    log_info(concat("interrupted after step ", result.steps, "; go on with: ", resume_command(run_.config.run)));
  } else {
    const int64_t skipped = run_.step->skipped_steps();
    log_info(concat("done: ", result_sentence(result), " in ", human_seconds(result.seconds),
                    skipped > 0 ? concat(", ", skipped, " of them skipped (fp16 overflow)") : "", "; report: ", report));
  }
  if (!guessing_.sentence.empty()) log_warning(guessing_.sentence);
}

/// Text that the model writes at the end, by rank 0 on the whole model. Collective.
void RunReporter::write_text_samples(int64_t step) {
  if (run_.data.train->shape().kind != DataShape::Kind::kText || run_.config.sample_bytes == 0) return;
  if (!run_.parallel.part->is_whole()) {
    if (run_.is_first() && saver_.saved_step() == step) write_text_sample(step, *whole_model(run_));
    return;
  }
  run_.parallel.strategy->gather_weights();
  if (run_.is_first()) write_text_sample(step, *run_.model);
  run_.parallel.strategy->release_weights();
}

/// The link is measured only where exchanges pass a network, or are compressed in shared memory. Collective.
void RunReporter::write_advice(double step_seconds) {
  std::optional<LinkEstimate> link;
  if (run_.world.size > 1 && has_plain_replicas() && !step_seconds_.empty() &&
      (!GroupInternals::arena(run_.group) || run_.job.layout.compress != "none"))
    link = measure_link(run_.group);
  write_exchange_advice(step_seconds, link);
  write_waste();
  write_sync_advice(step_seconds, link.value_or(LinkEstimate{}));
}

/// Returns the path of report.html, or "none".
std::string RunReporter::write_report() {
  std::string path = "none";
  try {
    path = report::write_report(run_.config.run);
  } catch (const std::exception& error) {
    log_warning(concat("the training is complete and saved, its report is not: ", error.what()));
  }
  if (live_) live_->finish();
  live_.reset();
  return path;
}

/// The sentence is dropped after a few steps, when little can have been learnt.
void RunReporter::compare_with_guessing(const TrainResult& result) {
  if (!run_.is_first() || result.interrupted || !last_evaluation_.has_error()) return;
  guessing_ = cohort::compare_with_guessing(*run_.data.validation, result.val_error, result.val_precision);
  const int64_t epoch = (run_.data.train->num_samples() + run_.config.global_batch - 1) / run_.config.global_batch;
  if (result.steps < std::min(epoch, kLeastStepsToJudge)) guessing_.sentence.clear();
}

/// For example "validation loss 0.3, accuracy 90 %, test accuracy 89 % (10,000 samples) after 200 steps, ...".
std::string RunReporter::result_sentence(const TrainResult& result) const {
  const DataShape& shape = run_.data.train->shape();
  std::string text = concat("validation loss ", result.val_loss);
  if (last_evaluation_.has_error()) text += ", " + quality_text(shape, result.val_error, result.val_precision);
  text += metrics_text(result.metrics);
  if (result.test_samples > 0)
    text += concat(
        ", test ",
        std::isnan(result.test_error) ? concat("loss ", result.test_loss) : quality_text(shape, result.test_error, result.test_precision),
        " (", with_commas(result.test_samples), " samples)");
  text += concat(" after ", result.steps, " steps");
  if (result.reason == "steps" && run_.job.goal) text += concat(", without the goal ", run_.config.goal);
  if (result.reason == "goal") text += concat(", where the goal ", run_.config.goal, " was reached,");
  if (result.reason == "patience")
    text += concat(", after ", run_.config.patience, run_.config.patience == 1 ? " evaluation" : " evaluations",
                   " without a lower validation loss than that of step ", saver_.best().best().step, " (checkpoints/best),");
  return text;
}

}  // namespace cohort
