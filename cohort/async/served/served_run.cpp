// Two threads. One serves: it owns the newest version, work queue and statistics. After a step that is to be evaluated or saved it copies a
// complete version and goes on; the other thread, which is also worker 0, evaluates and saves that copy between two of its work items, so
// that nobody waits for it. At most kMaxSnapshots copies exist; beyond that no work is handed out until one is processed.
//
// A checkpoint (async_training.h) does not hold outstanding work: that is done again.
#include "cohort/async/served/served_run.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "cohort/async/served/served_worker.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/text.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/train/initial_model.h"

namespace cohort {
namespace {

constexpr size_t kMaxSnapshots = 2;
constexpr double kServePollSeconds = 0.05;

}  // namespace

ServedRun::ServedRun(RunSetup& run, int num_workers, std::function<bool(int)> may_connect)
    : run_(run),
      num_workers_(num_workers),
      may_connect_(std::move(may_connect)),
      ticket_work_(run.job, *run.data.train, *run.model, run.teacher.get()),
      served_model_(initial_model(run.config, run.data.train->shape()).model),
      own_(*run.model),
      served_(*served_model_),
      async_(run, *served_model_, num_workers, name_settings("--workers ")),
      worker_(make_async_worker(*run.model, run.job)) {
  run.parallel.strategy->hold_gradients();
  install_state_callbacks(run, {[this] { return saved_pieces(); }, [this] { return loaded_pieces(); }, [this] { after_loading(); }});
}

ServedRun::~ServedRun() { join("rank 0 has ended"); }

void ServedRun::join(const std::string& why) {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    if (!stop_serving_) end_reason_ = why;
  }
  stop_serving_ = true;
  thread_.join();
}

// ---- the serving thread ----

void ServedRun::serve(MessageServer messages, const std::string& configuration) {
  std::optional<ModelServer> server;
  std::string reason;
  try {
    server.emplace(async_,
                   ModelServerOptions{.applied = [this](const ServedPush& push) { on_applied(push); },
                                      .configuration = configuration,
                                      .fingerprint = fingerprint_,
                                      .num_workers = num_workers_,
                                      .may_connect = may_connect_},
                   std::move(messages));
    while (!is_over_ && !stop_serving_) {
      server->poll(kServePollSeconds);
      const std::lock_guard lock(mutex_);
      server->pause(is_over_ || num_snapshots_ >= kMaxSnapshots);
    }
    const std::lock_guard lock(mutex_);
    reason = end_reason_;
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    reason = first_line(error.what());
  }
  is_over_ = true;
  if (server) server->end(reason);
}

/// The computing seconds of a step are the mean over the workers.
void ServedRun::on_applied(const ServedPush& push) {
  async_.window.add(push);
  computing_seconds_ += push.computing_seconds;
  push_seconds_ += push.push_seconds;
  const int64_t from = steps_served_, to = async_.queue.steps_done();
  if (to <= from) return;
  steps_served_ = to;
  FinishedSteps finished{
      .from = from, .step = async_.window.result(run_, from, to, computing_seconds_ / num_workers_, push_seconds_), .snapshot = nullptr};
  async_.window.begin();
  computing_seconds_ = push_seconds_ = 0;
  const bool is_last = to >= run_.total_steps || finished.step.stop;
  const bool is_needed =
      is_last || passes_multiple(from, to, run_.config.eval_every) || passes_multiple(from, to, run_.config.checkpoint_every);
  if (is_needed) finished.snapshot = snapshot();
  is_over_ = is_last;
  const std::lock_guard lock(mutex_);
  num_snapshots_ += is_needed ? 1 : 0;
  finished_.push_back(std::move(finished));
}

std::unique_ptr<ServedRun::Snapshot> ServedRun::snapshot() const {
  auto out = std::make_unique<Snapshot>();
  async_.model->copy_to_module();
  out->weights = served_.copy_of_weights();
  out->buffers = served_.copy_of_buffers();
  out->pieces = async_.model->saved_pieces();
  // Trainings without reports, as `verify` compares them, hold only what every training has.
  if (!run_.options.reports) std::erase_if(out->pieces, [](const FlatPiece& piece) { return piece.name.starts_with("async/"); });
  for (FlatPiece& piece : out->pieces) piece.values = piece.values.detach().clone();
  if (run_.options.reports) out->pieces.push_back(async_state_piece(async_.state(key())));
  return out;
}

// ---- the caller's thread ----

void ServedRun::process_finished_steps(AfterStep& after) {
  while (!after.ends()) {
    FinishedSteps finished;
    {
      const std::lock_guard lock(mutex_);
      if (finished_.empty()) return;
      finished = std::move(finished_.front());
      finished_.pop_front();
    }
    const bool has_snapshot = finished.snapshot != nullptr;
    if (has_snapshot) {
      own_.set_weights(finished.snapshot->weights);
      own_.set_buffers(finished.snapshot->buffers);
      current_ = std::move(finished.snapshot);
    }
    if (run_.status) run_.status[0].last_step = finished.step.metrics.step;
    after.finish(finished.from, finished.step);
    const std::lock_guard lock(mutex_);
    num_snapshots_ -= has_snapshot ? 1 : 0;
    if (after.ends()) stop_serving_ = true;
  }
}

void ServedRun::work(MessageClient client, const std::string& configuration, AfterStep& after) {
  const Tickets queue(async_.options);
  ServedWorker worker(*worker_, make_compute_function(*worker_, queue, ticket_work_, run_.job, run_.total_steps), std::move(client),
                      {.worker = 0,
                       .configuration = configuration,
                       .injection = run_.injection,
                       .timeout_seconds = run_.config.timeout,
                       .between_items = [&] { process_finished_steps(after); }});
  worker.run();
  process_finished_steps(after);
}

TrainResult ServedRun::train(MessageServer server, MessageClient client, const std::string& configuration, RunSaver& saver,
                             RunReporter& reporter) {
  reporter.start();
  AfterStep after(run_, saver, reporter);
  steps_served_ = saver.first_step();
  async_.window.begin();
  if (run_.options.keep_first) saver.save(steps_served_, /*is_last=*/false, reporter);
  if (steps_served_ < run_.total_steps) {
    if (run_.reports_here())
      log_info(concat("sync=", to_text(async_.sync), ": rank 0 serves ", num_workers_, num_workers_ == 1 ? " worker" : " workers",
                      ", itself among them; ", human_bytes(async_.model->pull_bytes()), " down and ",
                      human_bytes(async_.model->push_bytes()), " up for a work item of ", async_.queue.ticket_of(0, 0).num_samples(),
                      " samples"));
    thread_ = std::thread([this, &configuration, server = std::move(server)]() mutable { serve(std::move(server), configuration); });
    std::exception_ptr own;
    bool lost_server = false;
    try {
      work(std::move(client), configuration, after);
    } catch (const std::exception& error) {
      own = std::current_exception();
      const auto* known = dynamic_cast<const Error*>(&error);
      lost_server = known && known->code() == ErrorCode::kEnvironment;
      join(first_line(error.what()));
    }
    join("");
    // Rethrow the cause, not its consequence: a failure here is reported to the server, which then fails with it.
    if (own && !(failure_ && lost_server)) std::rethrow_exception(own);
    if (failure_) std::rethrow_exception(failure_);
  }
  after.evaluate_at_end();
  if (run_.reports_here()) log_summary(after.result().steps, reporter);
  reporter.end(after.result());
  return after.result();
}

void ServedRun::log_summary(int64_t steps, RunReporter& reporter) const {
  const AsyncRecord record = async_.record(steps);
  reporter.event(record);
  log_info(concat("sync=", record.sync, ": ", async_summary(record)));
}

std::string ServedRun::key() const { return concat("served | ", async_.key_prefix(), num_workers_); }

std::vector<FlatPiece> ServedRun::saved_pieces() const {
  // With local steps each worker has its own optimizer; a checkpoint holds that of worker 0, this thread.
  return joined((current_ ? *current_ : *snapshot()).pieces, worker_->pieces());
}

std::vector<FlatPiece> ServedRun::loaded_pieces() {
  std::vector<FlatPiece> pieces = joined(async_.load(key()), worker_->pieces());
  async_.queue.give_all_back();  // Outstanding work is done again, also that of workers that had joined.
  if (const std::string& compress = run_.job.layout.compress; compress != "none" && run_.reports_here())
    log_info(concat("compress=", compress, ": the residuals of the workers are not saved; all begin at zero again"));
  return pieces;
}

void ServedRun::after_loading() {
  served_.set_weights(own_.weights);
  served_.set_buffers(own_.copy_of_buffers());
  worker_->load_counts();
  async_.loaded();
}

}  // namespace cohort
