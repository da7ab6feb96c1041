// The training loop. Order of one step, on every rank:
//   1. this rank's share of the global batch comes from the loader, which reads ahead;
//   2. forward and backward for each of its micro-batches, the loss divided by the samples of the whole global batch, so that the sum of
//      all ranks' gradients is the gradient of the mean; the exchange (parallel/data_parallel.h) overlaps the last backward;
//   3. clip, optimizer step, evaluation and checkpoint where due.
//
// The loss and Ctrl-C of each rank travel with the gradients, so all ranks report one loss and stop after the same step without a message
// of their own.
#include "cohort/train/trainer.h"

#include <ATen/Parallel.h>
#include <ATen/core/Generator.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <thread>

#include "cohort/base/error.h"
#include "cohort/base/json.h"
#include "cohort/base/layout.h"
#include "cohort/base/log.h"
#include "cohort/base/memory.h"
#include "cohort/base/random.h"
#include "cohort/base/statistics.h"
#include "cohort/base/text.h"
#include "cohort/comm/group.h"
#include "cohort/data/loader.h"
#include "cohort/models/registry.h"
#include "cohort/models/step_context.h"
#include "cohort/parallel/agreement.h"
#include "cohort/parallel/data_parallel.h"
#include "cohort/report/progress.h"
#include "cohort/report/report.h"
#include "cohort/train/batch_tensors.h"
#include "cohort/train/evaluate.h"
#include "cohort/train/metrics.h"
#include "cohort/train/optimizer.h"
#include "cohort/train/run_folder.h"
#include "cohort/train/run_state.h"
#include "cohort/version.h"
#include "cohort/world/start_time.h"
#include "cohort/world/status.h"
#include "cohort/world/stop.h"

namespace cohort {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point a, Clock::time_point b) { return std::chrono::duration<double>(b - a).count(); }
void sleep_seconds(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

/// A JSON number, or null where it is not finite (JSON has no such numbers).
Json finite(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

enum Control { kLoss, kStop };

/// Everything that one rank holds during a run.
class Run {
 public:
  Run(const Config& config, const DataSet& data, const World& world, const TrainOptions& options);
  TrainResult train();

 private:
  struct Step {
    StepMetrics metrics;
    bool stop = false;
  };
  Step step(int64_t number, LoadedBatch& batch);
  double forward_backward(LoadedBatch& batch, int64_t step);
  void evaluate_now(int64_t step, bool last);
  void save(int64_t step);
  void write_start();
  void write_end(bool interrupted);
  void write_rank_totals();
  void write_text_sample(int64_t step);
  bool is_first() const { return world_.rank == 0; }
  bool reports_here() const { return is_first() && options_.reports; }

  Config config_;
  const DataSet& data_;
  World world_;
  TrainOptions options_;
  Layout layout_;
  Injection injection_;
  Group group_;
  std::shared_ptr<LayerGraph> model_;
  std::unique_ptr<DataParallel> parallel_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<RunState> state_;
  std::unique_ptr<Metrics> metrics_;  // Rank 0 only.
  std::unique_ptr<Progress> progress_;
  StatusPage status_;
  int64_t first_step_ = 0, total_steps_ = 0, saved_step_ = -1, evaluated_step_ = -1;
  std::vector<double> step_seconds_;
  StepMetrics totals_;
  int64_t samples_ = 0;
  double first_step_seconds_ = -1;  // From the command to the end of the first step.
  Evaluation last_evaluation_;
  TrainResult result_;
  Clock::time_point began_ = Clock::now();
};

int threads_of_rank(const Config& config, const World& world) {
  if (config.threads > 0) return config.threads;
  const int cores = static_cast<int>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  return std::max(1, cores / world.local_size);
}

Run::Run(const Config& config, const DataSet& data, const World& world, const TrainOptions& options)
    : config_(config),
      data_(data),
      world_(world),
      options_(options),
      layout_(parse_layout(config.layout, world.size)),
      injection_(injection_for_rank(config.inject, world.rank)) {
  at::set_num_threads(threads_of_rank(config, world));
  if (world.status_fd >= 0) status_ = StatusPage::open(::dup(world.status_fd), world.size);
  group_ = Group::create(world, {.backend = config.backend, .timeout_seconds = config.timeout});
  // The clocks of ranks differ, so rank 0's folder is everybody's.
  if (config_.run.empty()) config_.run = group_.all_gather_text(default_run_folder(config_), "the run folder").front();
  check_same_text(group_, to_toml(config_), "the configuration", "start all ranks with the same options and config.toml");
  model_ = build_model(config.model, data.train->shape(), config.seed);
  const int64_t steps_per_epoch = Sampler(data.train->num_samples(), config.global_batch, config.seed).steps_per_epoch();
  total_steps_ = config.steps > 0
                     ? config.steps
                     : static_cast<int64_t>(std::ceil((config.epochs > 0 ? config.epochs : 1.0) * static_cast<double>(steps_per_epoch)));
  for (int rank = 0; rank < world_.size; ++rank) {
    if (share_of_rank(std::min(config.global_batch, data.train->num_samples()), rank, world_.size, model_->sample_granularity()).size() > 0)
      continue;
    fail(ErrorCode::kBadInput, "a global batch of ", config.global_batch, " leaves rank ", rank, " of ", world_.size, " without samples",
         model_->sample_granularity() > 1 ? ": this model's batch norm keeps groups of samples together" : "",
         "; use fewer workers, a larger --global-batch",
         model_->sample_granularity() > 1 ? ", or another norm (norm=ghost with a smaller ghost=N, group, none)" : "");
  }
  if (is_first()) prepare_run_folder(config_);
  parallel_ = std::make_unique<DataParallel>(
      *model_, group_,
      DataParallelOptions{.mean = GradientMean::kSum,
                          .bucket_bytes = config.bucket_bytes > 0 ? config.bucket_bytes : DataParallelOptions().bucket_bytes});
  optimizer_ = std::make_unique<Optimizer>(config_, distinct_parameters(*model_));
  state_ = std::make_unique<RunState>(config_, layout_, *model_, *optimizer_, group_, data.train->num_samples());
  if (config_.eval_every == 0) config_.eval_every = std::min(steps_per_epoch, std::max<int64_t>(1, total_steps_));
  if (config.resume) first_step_ = saved_step_ = state_->load_latest();
  if (reports_here()) {
    metrics_ = std::make_unique<Metrics>(config_.run, first_step_, config_.json);
    progress_ = std::make_unique<Progress>(total_steps_, first_step_, !config_.quiet);
  }
}

void Run::write_start() {
  if (!reports_here()) return;
  int64_t num_parameters = 0;
  for (const NamedTensor& parameter : distinct_parameters(*model_)) num_parameters += parameter.tensor.numel();
  metrics_->event(Json{{"event", "start"},
                       {"world_size", world_.size},
                       {"layout", to_json(layout_)},
                       {"parameters", num_parameters},
                       {"train_samples", data_.train->num_samples()},
                       {"val_samples", data_.validation->num_samples()},
                       {"model", config_.model},
                       {"data", config_.data},
                       {"global_batch", config_.global_batch},
                       {"steps", total_steps_},
                       {"backend", group_.backend_name()},
                       {"launcher", world_.launcher},
                       {"version", COHORT_VERSION},
                       {"torch", COHORT_BUILT_WITH_TORCH},
                       {"host", world_.host},
                       {"started", utc_now()}});
  if (config_.resume) metrics_->event(Json{{"event", "resume"}, {"step", first_step_}, {"from", config_.run + "/checkpoints/latest"}});
  metrics_->flush();
  progress_->note(concat("training ", config_.model, " (", with_commas(num_parameters), " parameters) on ", config_.data, " (",
                         with_commas(data_.train->num_samples()), " samples), ", world_.size, world_.size == 1 ? " worker" : " workers",
                         ", ", total_steps_, " steps of ", config_.global_batch, " samples",
                         config_.resume ? concat(", going on after step ", first_step_) : ""));
}

/// Sum over this rank's micro-batches of loss x (their samples / all samples of the step).
double Run::forward_backward(LoadedBatch& loaded, int64_t step) {
  if (loaded.batch.num_samples == 0) {
    parallel_->set_control(kLoss, 0);
    parallel_->exchange_without_backward();
    return 0;
  }
  const BatchTensors whole = as_tensors(loaded.batch, data_.train->shape());
  double loss_sum = 0;
  // Pieces of a batch are cut as shares of ranks are; pieces without samples come last.
  int num_pieces = 0;
  while (num_pieces < config_.accumulate &&
         share_of_rank(loaded.batch.num_samples, num_pieces, config_.accumulate, model_->sample_granularity()).size() > 0)
    ++num_pieces;
  for (int piece = 0; piece < num_pieces; ++piece) {
    const Share share = share_of_rank(loaded.batch.num_samples, piece, config_.accumulate, model_->sample_granularity());
    const StepContextScope context({config_.seed, step, loaded.share.begin + share.begin});
    const at::Tensor logits = model_->forward(whole.input.narrow(0, share.begin, share.size()));
    at::Tensor loss = cross_entropy(logits, whole.target.narrow(0, share.begin, share.size()));
    loss = loss * (static_cast<double>(share.size()) / static_cast<double>(loaded.global_samples));
    loss_sum += loss.item<double>();
    parallel_->set_sync(piece + 1 == num_pieces);
    parallel_->set_control(kLoss, static_cast<float>(loss_sum));
    loss.backward();
  }
  return loss_sum;
}

Run::Step Run::step(int64_t number, LoadedBatch& batch) {
  Step out;
  const auto start = Clock::now();
  // A user's model may draw from LibTorch's generator; this makes it a function of (seed, step, rank), so that a resumed run draws the
  // same.
  torch::manual_seed(random_bits(config_.seed, number, world_.rank));
  optimizer_->zero_grad();
  parallel_->set_buffer_share(static_cast<double>(batch.share.size()) / static_cast<double>(batch.global_samples));
  parallel_->set_control(kStop, stop_requested() ? 1 : 0);
  forward_backward(batch, number);
  if (injection_.slow_factor > 1) sleep_seconds((injection_.slow_factor - 1) * seconds_between(start, Clock::now()));
  const auto exchanged = Clock::now();
  if (config_.clip_norm > 0) out.metrics.gradient_norm = optimizer_->clip_gradients(config_.clip_norm);
  out.metrics.learning_rate = learning_rate_at(config_, number, total_steps_);
  out.metrics.loss = parallel_->control_sum(kLoss);
  out.stop = parallel_->control_sum(kStop) > 0;
  if (!std::isfinite(out.metrics.loss))
    fail(ErrorCode::kFailed, "the loss is not finite (", out.metrics.loss, ") at step ", number + 1, "; use a smaller --lr (now ",
         out.metrics.learning_rate, "), --warmup-steps or --clip-norm. The weights of the last checkpoint are untouched");
  optimizer_->step(out.metrics.learning_rate);
  const auto end = Clock::now();
  StepMetrics& m = out.metrics;
  m.step = number + 1;
  m.data_seconds = batch.waited_seconds;
  m.exchange_seconds = world_.size > 1 ? parallel_->statistics().exposed_seconds : 0;
  m.compute_seconds = seconds_between(start, exchanged) - m.exchange_seconds;
  m.optimizer_seconds = seconds_between(exchanged, end);
  m.step_seconds = m.data_seconds + seconds_between(start, end);
  m.samples_per_second = static_cast<double>(batch.global_samples) / m.step_seconds;
  return out;
}

void Run::evaluate_now(int64_t step, bool last) {
  if (!options_.reports) return;
  const bool with_confusion = data_.train->shape().kind == DataShape::Kind::kImage && data_.train->shape().num_classes <= 100;
  last_evaluation_ = evaluate(*model_, *data_.validation, group_, 250, with_confusion);
  evaluated_step_ = step;
  result_.val_loss = last_evaluation_.loss;
  result_.val_error = last_evaluation_.error;
  if (!is_first()) return;
  metrics_->evaluation(step, last_evaluation_.loss, last_evaluation_.error);
  if (!last)
    progress_->note(concat("step ", step, ": validation loss ", last_evaluation_.loss, ", error ", 100 * last_evaluation_.error, " %"));
}

void Run::save(int64_t step) {
  if (saved_step_ == step) return;
  const std::string path = state_->save(step);
  saved_step_ = step;
  if (!reports_here()) return;
  metrics_->event(Json{{"event", "checkpoint"}, {"step", step}, {"path", path}});
  metrics_->flush();
}

void Run::write_rank_totals() {
  const Json mine{{"rank", world_.rank},
                  {"host", world_.host},
                  {"pid", ::getpid()},
                  {"samples", samples_},
                  {"data_seconds", totals_.data_seconds},
                  {"compute_seconds", totals_.compute_seconds},
                  {"exchange_seconds", totals_.exchange_seconds},
                  {"optimizer_seconds", totals_.optimizer_seconds},
                  {"peak_memory_bytes", peak_memory_bytes()}};
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
  if (data_.train->shape().kind == DataShape::Kind::kText && config_.sample_bytes > 0) write_text_sample(result_.steps);
  const bool trained = !step_seconds_.empty();
  if (result_.interrupted) {
    metrics_->event(
        Json{{"event", "interrupted"}, {"step", result_.steps}, {"checkpoint", config_.run + "/checkpoints/latest"}, {"run", config_.run}});
  } else {
    metrics_->event(Json{{"event", "done"},
                         {"step", result_.steps},
                         {"loss", trained ? finite(result_.loss) : Json(nullptr)},
                         {"val_loss", finite(result_.val_loss)},
                         {"val_error", finite(result_.val_error)},
                         {"seconds", result_.seconds},
                         {"predicted_step_seconds", nullptr},
                         {"measured_step_seconds", trained ? Json(result_.step_seconds) : Json(nullptr)},
                         {"first_step_seconds", trained ? Json(first_step_seconds_) : Json(nullptr)},
                         {"peak_memory_bytes", peaks},
                         {"run", config_.run}});
  }
  metrics_->flush();
}

void Run::write_text_sample(int64_t step) {
  const std::string prompt = config_.prompt.empty() ? first_text(*data_.validation, 32) : config_.prompt;
  const std::string text = sample_text(*model_, data_.train->shape(), prompt, config_.sample_bytes, 0.8, config_.seed);
  metrics_->event(Json{{"event", "sample"}, {"step", step}, {"prompt", prompt}, {"text", text}}, false);
  if (!config_.json) progress_->note("the model writes: " + printable(prompt + text));
}

void Run::write_end(bool interrupted) {
  result_.interrupted = interrupted;
  result_.seconds = seconds_between(began_, Clock::now());
  result_.step_seconds = median(step_seconds_);
  if (!options_.reports) return;
  write_rank_totals();
  if (!is_first()) return;
  progress_->finish();
  std::string report = "none";
  try {
    report = write_report(config_.run);
  } catch (const std::exception& error) {
    log_warning(concat("the training is complete and saved, its report is not: ", error.what()));
  }
  if (interrupted)
    log_info(concat("interrupted after step ", result_.steps, "; go on with: cohort train ", config_.run, "/config.toml --resume"));
  else
    log_info(concat("done: validation loss ", result_.val_loss, ", accuracy ", 100 * (1 - result_.val_error), " % after ", result_.steps,
                    " steps in ", human_seconds(result_.seconds), "; report: ", report));
}

TrainResult Run::train() {
  write_start();
  std::optional<Goal> goal;
  if (!config_.goal.empty()) goal = parse_goal(config_.goal);
  result_.steps = first_step_;
  bool stop = false, goal_reached = false;
  if (first_step_ < total_steps_) {
    Loader loader(data_.train, {.global_batch = config_.global_batch,
                                .seed = config_.seed,
                                .rank = world_.rank,
                                .num_ranks = world_.size,
                                .granularity = model_->sample_granularity(),
                                .first_step = first_step_,
                                .end_step = total_steps_});
    for (int64_t number = first_step_; number < total_steps_ && !stop && !goal_reached; ++number) {
      if (number == injection_.kill_step) ::raise(SIGKILL);
      if (number == first_step_ && injection_.pause_seconds > 0) sleep_seconds(injection_.pause_seconds);
      LoadedBatch batch = loader.next();
      const Step step = this->step(number, batch);
      stop = step.stop;
      result_.steps = number + 1;
      if (number == first_step_) first_step_seconds_ = seconds_since_command(world_);
      result_.loss = step.metrics.loss;
      if (status_) status_[world_.rank].last_step = number + 1;
      step_seconds_.push_back(step.metrics.step_seconds);
      samples_ += batch.share.size();
      loader.recycle(std::move(batch.batch));
      totals_.data_seconds += step.metrics.data_seconds;
      totals_.compute_seconds += step.metrics.compute_seconds;
      totals_.exchange_seconds += step.metrics.exchange_seconds;
      totals_.optimizer_seconds += step.metrics.optimizer_seconds;
      const bool last = number + 1 == total_steps_;
      if (reports_here() && ((number + 1) % config_.log_every == 0 || last || stop)) metrics_->step(step.metrics);
      if ((number + 1) % config_.eval_every == 0 || last) evaluate_now(number + 1, last);
      if (reports_here()) {
        const std::optional<double> error = evaluated_step_ >= 0 ? std::optional<double>(result_.val_error) : std::nullopt;
        progress_->update(number + 1, step.metrics.loss, step.metrics.samples_per_second, error);
      }
      if (goal && evaluated_step_ == number + 1)
        goal_reached = goal->reached({{"val_error", result_.val_error}, {"val_loss", result_.val_loss}, {"loss", result_.loss}});
      if ((config_.checkpoint_every > 0 && (number + 1) % config_.checkpoint_every == 0) || last || stop || goal_reached) save(number + 1);
    }
  }
  if (evaluated_step_ < 0 && !stop) evaluate_now(result_.steps, true);  // Nothing was left to train.
  write_end(stop);
  return result_;
}

}  // namespace

TrainResult train(const Config& config, const DataSet& data, const World& world, const TrainOptions& options) {
  keep_freed_memory();
  catch_stop_signals();
  return Run(config, data, world, options).train();
}

}  // namespace cohort
