#include "cohort/async/async_training.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "cohort/async/gradient_server.h"
#include "cohort/async/model_queue.h"
#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/checkpoint/checkpoint.h"
#include "cohort/job/specs/sync_mode.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/world/stop.h"

namespace cohort {
namespace {

constexpr const char* kStateName = "async/state";
constexpr int64_t kMaxStateBytes = int64_t{1} << 28;

std::unique_ptr<AsyncMode> make_async_mode(const torch::nn::Module& model, const RunSetup& run, int num_workers) {
  const SyncMode& sync = run.job.layout.sync;
  if (sync.quorum > 0)
    return std::make_unique<LocalServer>(
        model, LocalServerOptions{.outer = OuterOptimizer::of(sync, run.config.outer_lr, run.config.outer_momentum),
                                  .global_batch = run.config.global_batch});
  if (sync.kind == SyncKind::kQueue)
    return std::make_unique<ModelQueue>(model, ModelQueueOptions{.rule = run.job.rule,
                                                                 .global_batch = run.config.global_batch,
                                                                 .capacity = num_workers,
                                                                 .newest = sync.newest,
                                                                 .replaces = sync.replaces});
  return std::make_unique<GradientServer>(model, GradientServerOptions{.rule = run.job.rule,
                                                                       .rate_factor = run.job.rate_factor,
                                                                       .global_batch = run.config.global_batch,
                                                                       .compress = run.job.layout.compress});
}

struct SavedState {
  Json state;  // Null if the checkpoint has none, or one of another key, which is logged.
  std::string where;
  int64_t step = 0;
};
SavedState find_saved_state(const std::string& run, const std::string& key) {
  const std::optional<Checkpoint> checkpoint = Checkpoint::open_latest(run + "/checkpoints");
  if (!checkpoint) fail(ErrorCode::kFailed, "no checkpoint in ", run, "/checkpoints any more");
  SavedState found{.state = {}, .where = concat(name_settings("--resume: "), checkpoint->path()), .step = checkpoint->step()};
  if (!checkpoint->has(kStateName)) return found;
  const std::vector<int64_t>& shape = checkpoint->shape(kStateName);
  if (shape.size() != 1 || shape[0] > kMaxStateBytes || checkpoint->dtype(kStateName) != DType::kU8)
    fail(ErrorCode::kBadInput, checkpoint->path(), ": ", kStateName, " has an invalid type or size");
  std::string text(static_cast<size_t>(shape[0]), 0);
  checkpoint->read_whole(kStateName, text.data());
  Json state = parse_strict_ordered_json(text, {.path = found.where});
  if (state.is_object() && state.value("key", Json()) == key) found.state = std::move(state);
  else
    log_info(concat(found.where,
                    " was saved with other workers, another sync, remedy or compression; this run goes on from its weights and optimizer, "
                    "and all workers begin anew"));
  return found;
}

}  // namespace

WorkQueueOptions work_queue_options(const Config& config, const DataSource& samples, const LayerGraph& model, int64_t total_steps,
                                    int num_workers, const std::string& workers_setting, const SyncMode& sync) {
  const WorkQueueOptions options{.num_samples = samples.num_samples(),
                                 .global_batch = config.global_batch,
                                 .num_shares = num_workers,
                                 .granularity = model.sample_granularity(),
                                 .end_step = total_steps,
                                 .steps = sync.quorum > 0 ? steps_per_round(sync) : 1,
                                 .own_shares = sync.quorum > 0};
  const int64_t batch = std::min(options.global_batch, options.num_samples);
  if (share_of_rank(batch, num_workers - 1, num_workers, options.granularity).size() == 0)
    fail(ErrorCode::kBadInput, workers_setting, num_workers, ": a step of ", batch, " samples leaves some of them without",
         options.granularity > 1
             ? name_settings("; this model's batch norm keeps groups of samples together: use another norm (norm=group, none, "
                             "norm=ghost with a smaller ghost=N), fewer workers, or a larger --global-batch")
             : name_settings("; use fewer workers, or a larger --global-batch"));
  return options;
}

std::unique_ptr<AsyncWorker> make_async_worker(const torch::nn::Module& model, const Job& job) {
  const SyncMode& sync = job.layout.sync;
  if (sync.quorum > 0) return std::make_unique<LocalWorker>(model, job.rule);
  if (sync.kind == SyncKind::kQueue) return std::make_unique<QueueWorker>(model, job.rule);
  return std::make_unique<GradientWorker>(model, job.layout.compress);
}

void StepWindow::begin() {
  *this = {};
  began_ = steady_seconds();
}

void StepWindow::add(const AppliedPush& push) {
  loss_ += push.loss;
  weight_ += push.item.weight();
  samples_ += push.item.num_samples();
  gradient_norm_ = push.outcome.gradient_norm;
}

StepResult StepWindow::result(const RunSetup& run, int64_t from, int64_t step, double compute_seconds, double optimizer_seconds) const {
  StepResult out;
  StepRecord& m = out.metrics;
  m.step = step;
  m.loss = static_cast<float>(loss_ / weight_);  // The precision in which ranks exchange losses.
  m.step_seconds = steady_seconds() - began_;
  m.samples_per_second = static_cast<double>(samples_) / m.step_seconds;
  m.data_seconds = m.exchange_seconds = 0;
  m.compute_seconds = compute_seconds;
  m.optimizer_seconds = optimizer_seconds;
  for (double StepRecord::* seconds : {&StepRecord::step_seconds, &StepRecord::compute_seconds, &StepRecord::optimizer_seconds})
    m.*seconds /= static_cast<double>(step - from);
  m.learning_rate = run.job.learning_rate.at(step - 1, run.total_steps);
  if (run.config.clip_norm > 0) m.gradient_norm = gradient_norm_;
  out.stop = stop_requested();
  out.num_samples = samples_;
  return out;
}

AsyncTraining::AsyncTraining(const RunSetup& run_setup, const torch::nn::Module& module, int num_workers,
                             const std::string& workers_setting)
    : run(run_setup),
      sync(run.job.layout.sync),
      options(work_queue_options(run.config, *run.data.train, *run.model, run.total_steps, num_workers, workers_setting, sync)),
      queue(options),
      statistics(num_workers),
      loaded_state_(std::make_shared<Json>()) {
  if (is_local(sync)) {
    auto made = std::make_unique<LocalModels>(
        module, run.job.rule, OuterOptimizer::of(sync, run.config.outer_lr, run.config.outer_momentum), num_workers, sync.fragments);
    local = made.get();
    model = std::move(made);
  } else {
    auto made = make_async_mode(module, run, num_workers);
    mode = made.get();
    local_server = mode->local_server();
    model = std::move(made);
  }
}

std::string AsyncTraining::key_prefix() const {
  const std::string& compress = run.job.layout.compress;
  return concat(to_text(sync), compress == "none" ? "" : ",compress=" + compress, " | ", run.config.remedy, " | ");
}

StepNumbers AsyncTraining::numbers() const { return {run.job.learning_rate.at(queue.steps_done(), run.total_steps), run.config.clip_norm}; }

int64_t AsyncTraining::staleness_bound() const { return sync.kind == SyncKind::kStale ? sync.number : -1; }

Json AsyncTraining::state(const std::string& key) const {
  return Json{{"key", key},
              {"total_steps", run.total_steps},
              {"tickets", queue.state()},
              {"mode", model->state()},
              {"accounts", statistics.state()}};
}

std::vector<FlatPiece> AsyncTraining::load(const std::string& key) {
  SavedState found = find_saved_state(run.config.run, key);
  loaded_from_ = std::move(found.where);
  *loaded_state_ = std::move(found.state);
  if (loaded_state_->is_null()) {
    options.first_step = found.step;
    queue = WorkQueue(options);
    return model->loaded_pieces(Json(), loaded_from_);
  }
  std::vector<FlatPiece> pieces = model->loaded_pieces(loaded_state_->value("mode", Json()), loaded_from_);
  queue.load(loaded_state_->value("tickets", Json()), loaded_from_);
  statistics.load(loaded_state_->value("accounts", Json()), loaded_from_);
  return pieces;
}

void AsyncTraining::loaded() { model->loaded(loaded_state_->is_null() ? Json() : (*loaded_state_)["mode"]); }

AsyncRecord AsyncTraining::record(int64_t steps) const {
  AsyncRecord record = statistics.record();
  record.step = steps;
  record.sync = to_text(sync);
  record.remedy = run.config.remedy;
  if (run.job.layout.compress != "none") record.compress = run.job.layout.compress;
  record.bytes_in_flight_of_worker = model->bytes_in_flight();
  return record;
}

std::string async_summary(const AsyncRecord& record) {
  return concat(with_commas(record.pushes), " pushes, half of them at most ", record.staleness_median, " pushes late and 99 % at most ",
                record.staleness_tail, "; ", record.lost, " lost with ", record.deaths, record.deaths == 1 ? " death" : " deaths",
                record.left > 0 ? concat("; ", record.left, " left") : "");
}

FlatPiece async_state_piece(const Json& state) {
  const std::string text = state.dump();
  at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::memcpy(bytes.data_ptr(), text.data(), text.size());
  return {kStateName, bytes, {bytes.numel()}, 0};
}

void install_state_callbacks(RunSetup& run, StateCallbacks callbacks) {
  run.parallel.strategy = std::make_unique<StrategyWithState>(std::move(run.parallel.strategy), std::move(callbacks));
}

}  // namespace cohort
