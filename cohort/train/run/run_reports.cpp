// What a run tells: its first and last lines of metrics, the totals of its ranks, a sample of text, advice.

#include <torch/csrc/autograd/grad_mode.h>
#include <torch/types.h>
#include <unistd.h>

#include <chrono>

#include "cohort/base/clock.h"
#include "cohort/base/error.h"
#include "cohort/base/log.h"
#include "cohort/base/memory.h"
#include "cohort/base/statistics.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/base/text/utc_time.h"
#include "cohort/checkpoint/checkpoint.h"
#include "cohort/comm/shm/memory_count.h"
#include "cohort/comm/shm/shm_arena.h"
#include "cohort/models/registry.h"
#include "cohort/parallel/parameters.h"
#include "cohort/report/report.h"
#include "cohort/train/measured/exchange_advice.h"
#include "cohort/train/run/run.h"
#include "cohort/train/run/run_folder.h"
#include "cohort/train/tensor_division.h"
#include "cohort/version.h"

namespace cohort {

void Run::write_start() {
  if (!reports_here()) return;
  Json start{{"event", "start"},
             {"world_size", world_.size},
             {"layout", to_json(layout_)},
             {"parameters", parallel_.num_parameters},
             {"train_samples", data_.train->num_samples()},
             {"val_samples", data_.validation->num_samples()},
             {"model", config_.model},
             {"data", config_.data},
             {"global_batch", config_.global_batch},
             {"steps", total_steps_},
             {"optimizer", {{"name", config_.optimizer}, {"lr", config_.lr}, {"weight_decay", config_.weight_decay}}},
             {"backend", group_.backend_name()},
             {"launcher", world_.launcher},
             {"version", COHORT_VERSION},
             {"torch", COHORT_BUILT_WITH_TORCH},
             {"host", world_.host},
             {"started", utc_now()}};
  if (const std::string name = group_.device_backend_name(); !name.empty()) start["device_backend"] = name;
  if (model_->loss()) start["loss"] = "own";
  if (layout_.tp > 1) start["tensor_parallel"] = to_json(parallel_.division, layout_);
  metrics_->event(start);
  if (config_.resume)
    metrics_->event(
        Json{{"event", "resume"}, {"step", first_step_}, {"from", config_.run + "/checkpoints/latest"}, {"seconds", load_seconds_}});
  for (const SettingChange& change : options_.changes) {
    log_info(to_text(change));
    metrics_->event(
        Json{{"event", "changed"}, {"step", first_step_}, {"setting", change.setting}, {"from", change.from}, {"to", change.to}});
  }
  if (!parallel_.plan.pipeline.stages.empty()) metrics_->event(to_json(parallel_.plan.pipeline), /*to_stdout_too=*/false);
  metrics_->flush();
  progress_->note(concat("training ", config_.model, " (", with_commas(parallel_.num_parameters), " parameters) on ", config_.data, " (",
                         with_commas(data_.train->num_samples()), " samples), ", world_.size, world_.size == 1 ? " worker" : " workers",
                         ", ", total_steps_, " steps of ", config_.global_batch, " samples, ", config_.optimizer, " with learning rate ",
                         config_.lr, config_.weight_decay > 0 ? concat(" and weight decay ", config_.weight_decay) : "",
                         config_.resume ? concat(", going on after step ", first_step_) : ""));
  if (!config_.json && layout_.tp > 1) progress_->note(describe(parallel_.division, layout_));
  if (!config_.json && !parallel_.plan.table.empty())
    progress_->note(parallel_.plan.table.substr(0, parallel_.plan.table.find_last_not_of('\n') + 1));
}

/// Whether compressing would pay, for exchanges over a network.
void Run::write_exchange_advice() {
  if (world_.size == 1 || !parallel_.part->is_whole() || group_.arena() || layout_.zero > 0 || layout_.compress != "none" ||
      step_seconds_.empty())
    return;
  std::vector<std::vector<int64_t>> shapes;
  for (const NamedTensor& parameter : distinct_parameters(*model_))
    if (parameter.tensor.requires_grad()) shapes.push_back(parameter.tensor.sizes().vec());
  const double exposed = totals_.exchange_seconds / static_cast<double>(step_seconds_.size());
  const ExchangeAdvice advice = measure_advice(group_, {result_.step_seconds, exposed}, gradient_buckets(shapes));
  if (!is_first()) return;
  Json rows = Json::array();
  for (const ExchangeAdvice::Row& row : advice.rows)
    rows.push_back(Json{{"compress", row.compress},
                        {"predicted_step_seconds", row.predicted_step_seconds},
                        {"sent_bytes", row.sent_bytes},
                        {"compress_seconds", row.compress_seconds}});
  metrics_->event(Json{{"event", "exchange_advice"}, {"sentence", advice.sentence}, {"rows", rows}});
  progress_->note(advice.sentence);
}

/// What this rank holds of the model: {"data", "pipe", "tensor": place of size, "stages", "layers"}.
Json Run::describe_part() const {
  const auto place = [](int index, int size) { return concat(index + 1, " of ", size); };
  const MeshPoint& here = parallel_.part->here();
  Json layers = Json::array();
  for (const LayerGraph::Layer& layer : model_->layers())
    if (layer.function) layers.push_back(layer.name);
  Json part{{"data", place(here.data, parallel_.part->mesh().data_size(here.pipe))},
            {"pipe", place(here.pipe, parallel_.part->mesh().pipe_size())},
            {"tensor", place(here.tensor, parallel_.part->mesh().tensor_size())},
            {"layers", layers}};
  if (PipelineRunner* const pipeline = parallel_.part->pipeline()) {
    part["stages"] = pipeline->own_stages();
    part["waited_seconds"] = totals_.exchange_seconds;
    part["most_kept_micro_batches"] = pipeline->statistics().most_kept;
  }
  return part;
}

void Run::write_rank_totals() {
  const MemoryForecast forecast = parallel_.strategy->memory_forecast();
  Json mine{{"rank", world_.rank},
            {"host", world_.host},
            {"pid", ::getpid()},
            {"samples", samples_},
            {"data_seconds", totals_.data_seconds},
            {"compute_seconds", totals_.compute_seconds},
            {"exchange_seconds", totals_.exchange_seconds},
            {"optimizer_seconds", totals_.optimizer_seconds},
            {"peak_memory_bytes", peak_memory_bytes()},
            {"predicted_weight_bytes", forecast.weight_bytes},
            {"predicted_gradient_bytes", forecast.gradient_bytes},
            {"predicted_optimizer_bytes", forecast.optimizer_bytes}};
  if (config_.memory_limit > 0) {
    mine["memory_limit_bytes"] = config_.memory_limit;
    mine["peak_tensor_bytes"] = peak_counted_memory_bytes();
  }
  if (!parallel_.part->is_whole()) mine["part"] = describe_part();
  Json ranks = Json::array();
  for (const std::string& text : group_.all_gather_text(mine.dump(), "the ranks' totals")) ranks.push_back(Json::parse(text));
  if (!is_first()) return;
  Json peaks = Json::array();
  for (const Json& rank : ranks) peaks.push_back(rank["peak_memory_bytes"]);
  metrics_->event(Json{{"event", "ranks"}, {"ranks", ranks}}, /*to_stdout_too=*/false);
  if (!last_evaluation_.confusion.empty()) {
    std::vector<std::string> classes = data_.train->shape().class_names;
    for (size_t label = classes.size(); label < last_evaluation_.confusion.size(); ++label) classes.push_back(std::to_string(label));
    metrics_->event(Json{{"event", "confusion"}, {"step", evaluated_step_}, {"classes", classes}, {"counts", last_evaluation_.confusion}},
                    false);
  }
  const bool trained = !step_seconds_.empty();
  if (result_.interrupted) {
    metrics_->event(
        Json{{"event", "interrupted"}, {"step", result_.steps}, {"checkpoint", config_.run + "/checkpoints/latest"}, {"run", config_.run}});
  } else {
    Json done{
        {"event", "done"},
        {"step", result_.steps},
        {"loss", trained ? finite_json(result_.loss) : Json(nullptr)},
        {"val_loss", finite_json(result_.val_loss)},
        {"val_error", finite_json(result_.val_error)},
        {"seconds", result_.seconds},
        {"predicted_step_seconds", parallel_.plan.predicted_step_seconds > 0 ? Json(parallel_.plan.predicted_step_seconds) : Json(nullptr)},
        {"measured_step_seconds", trained ? Json(result_.step_seconds) : Json(nullptr)},
        {"first_step_seconds", trained ? Json(first_step_seconds_) : Json(nullptr)},
        {"peak_memory_bytes", peaks},
        {"run", config_.run}};
    if (needs_loss_scale(job_.precision)) done["skipped_steps"] = step_->skipped_steps();
    if (noise_) done["noise_scale"] = finite_json(noise_->recent().noise_scale());
    metrics_->event(done);
  }
  metrics_->flush();
}

/// The model that the checkpoint just written holds, for what one rank does alone.
std::shared_ptr<LayerGraph> Run::whole_model() const {
  at::NoGradGuard no_grad;
  std::shared_ptr<LayerGraph> model = build_model(config_.model, data_.train->shape(), config_.seed);
  const std::optional<Checkpoint> checkpoint = Checkpoint::open_latest(config_.run + "/checkpoints");
  if (!checkpoint) fail(ErrorCode::kFailed, "no checkpoint in ", config_.run, "/checkpoints, though one was written");
  for (const NamedTensor& tensor : distinct_parameters(*model)) checkpoint->read_whole("model/" + tensor.name, tensor.tensor.data_ptr());
  for (const NamedTensor& tensor : distinct_buffers(*model)) checkpoint->read_whole("model/" + tensor.name, tensor.tensor.data_ptr());
  return model;
}

void Run::write_text_sample(int64_t step, LayerGraph& model) {
  const std::string prompt = config_.prompt.empty() ? first_text(*data_.validation, 32) : config_.prompt;
  const auto text = sample_text(model, data_.train->shape(), prompt, config_.sample_bytes, 0.8, config_.seed);
  if (!text) return log_info("the output of the model is no scores of the next byte, so it writes no text (--sample-bytes 0 does not ask)");
  metrics_->event(Json{{"event", "sample"}, {"step", step}, {"prompt", prompt}, {"text", *text}}, false);
  if (!config_.json) progress_->note("the model writes: " + printable(prompt + *text));
}

void Run::write_end(bool interrupted) {
  result_.interrupted = interrupted;
  result_.seconds = seconds_since(began_);
  result_.step_seconds = median(step_seconds_);
  if (!options_.reports) return;
  if (data_.train->shape().kind == DataShape::Kind::kText && config_.sample_bytes > 0) {
    if (!parallel_.part->is_whole()) {
      if (is_first() && saved_step_ == result_.steps) write_text_sample(result_.steps, *whole_model());
    } else {
      parallel_.strategy->gather_weights();
      if (is_first()) write_text_sample(result_.steps, *model_);
      parallel_.strategy->release_weights();
    }
  }
  write_exchange_advice();
  write_rank_totals();
  if (!is_first()) return;
  progress_->finish();
  if (const std::string missing = metrics_->finish(); !missing.empty())
    log_warning(concat("the training has ended and is saved, but ", missing));
  std::string report = "none";
  try {
    report = write_report(config_.run);
  } catch (const std::exception& error) {
    log_warning(concat("the training is complete and saved, its report is not: ", error.what()));
  }
  if (interrupted)
    log_info(concat("interrupted after step ", result_.steps, "; go on with: cohort train ", config_.run, "/config.toml --resume"));
  else
    log_info(concat("done: validation loss ", result_.val_loss,
                    last_evaluation_.has_error() ? concat(", accuracy ", 100 * (1 - result_.val_error), " %") : "", " after ",
                    result_.steps, " steps in ", human_seconds(result_.seconds),
                    step_->skipped_steps() > 0 ? concat(", ", step_->skipped_steps(), " of them skipped (fp16 overflow)") : "",
                    "; report: ", report));
}

}  // namespace cohort
