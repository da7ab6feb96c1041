// Two threads. One serves: it owns the newest version, work queue and statistics. After a step that is to be evaluated or saved it copies a
// complete version and goes on; the other thread, which is also worker 0, evaluates and saves that copy between two of its work items, so
// that nobody waits for it. At most kMaxSnapshots copies exist; beyond that no work is handed out until one is processed.
//
// A checkpoint (async_training.h) does not hold outstanding work: that is done again.
#include "cohort/async/served/served_run.h"

#include <atomic>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "cohort/async/async_training.h"
#include "cohort/async/served/served_worker.h"
#include "cohort/async/simulated/clock_only.h"
#include "cohort/async/work_item_runner.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/text.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/train/initial_model.h"
#include "cohort/train/loop.h"
#include "cohort/train/run_reporter.h"
#include "cohort/train/run_saver.h"

namespace cohort {
namespace {

constexpr size_t kMaxSnapshots = 2;
constexpr double kServePollSeconds = 0.05;

class ServedRun {
 public:
  /// Construct before the RunSaver, whose state this object provides from then on.
  ServedRun(RunSetup& run, ModelServerOptions options)
      : run_(run),
        options_(std::move(options)),
        work_item_runner_(run.job, *run.data.train, *run.model, run.teacher.get()),
        served_model_(initial_model(run.config, run.data.train->shape()).model),
        own_(*run.model),
        served_(*served_model_),
        async_(run, *served_model_, options_.num_workers, name_settings("--workers ")),
        worker_(make_async_worker(*run.model, run.job)) {
    run.parallel.strategy->hold_gradients();
    options_.applied = [this](const ServedPush& push) { on_applied(push); };
    install_state_callbacks(run, {[this] { return saved_pieces(); }, [this] { return loaded_pieces(); }, [this] { after_loading(); }});
  }

  ~ServedRun() { join("rank 0 has ended"); }

  std::vector<at::Tensor> served_tensors() const { return async_.mode->served_tensors(); }

  TrainResult train(MessageServer server, MessageClient client, RunSaver& saver, RunReporter& reporter) {
    reporter.start();
    AfterStep after(run_, saver, reporter);
    steps_served_ = saver.first_step();
    async_.window.begin();
    if (run_.options.keep_first) saver.save(steps_served_, /*is_last=*/false, reporter);
    if (steps_served_ < run_.total_steps) {
      if (run_.reports_here())
        log_info(concat("sync=", to_text(async_.sync), ": rank 0 serves ", options_.num_workers,
                        options_.num_workers == 1 ? " worker" : " workers", ", itself among them; ",
                        human_bytes(async_.model->pull_bytes()), " down and ", human_bytes(async_.model->push_bytes()),
                        " up for a work item of ", async_.queue.item_at(0, 0).num_samples(), " samples"));
      thread_ = std::thread([this, server = std::move(server)]() mutable { serve(std::move(server)); });
      std::exception_ptr own;
      bool lost_server = false;
      try {
        work(std::move(client), after);
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

 private:
  /// A complete version, and everything that a checkpoint holds beside it.
  struct Snapshot {
    std::vector<at::Tensor> weights, buffers;
    std::vector<FlatPiece> pieces;
  };
  /// The steps after `from` up to that of `step`.
  struct FinishedSteps {
    int64_t from = 0;
    StepResult step;
    std::unique_ptr<Snapshot> snapshot;  ///< If there is something to evaluate or save.
  };

  // ---- the serving thread ----

  void serve(MessageServer messages) {
    std::unique_ptr<ModelServer> server;
    std::string reason;
    try {
      server = make_model_server(async_, options_, std::move(messages));
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
  void on_applied(const ServedPush& push) {
    async_.window.add(push);
    computing_seconds_ += push.computing_seconds;
    push_seconds_ += push.push_seconds;
    const int64_t from = steps_served_, to = async_.queue.steps_done();
    if (to <= from) return;
    steps_served_ = to;
    FinishedSteps finished{.from = from,
                           .step = async_.window.result(run_, from, to, computing_seconds_ / options_.num_workers, push_seconds_),
                           .snapshot = nullptr};
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

  std::unique_ptr<Snapshot> snapshot() const {
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

  void process_finished_steps(AfterStep& after) {
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

  void work(MessageClient client, AfterStep& after) {
    const WorkQueue queue(async_.options);
    run_served_worker(*worker_, make_compute_function(*worker_, queue, work_item_runner_, run_.job, run_.total_steps), std::move(client),
                      {.worker = 0,
                       .configuration = options_.configuration,
                       .injection = run_.injection,
                       .timeout_seconds = run_.config.timeout,
                       .between_items = [&] { process_finished_steps(after); }});
    process_finished_steps(after);
  }

  void log_summary(int64_t steps, RunReporter& reporter) const {
    const AsyncRecord record = async_.record(steps);
    reporter.event(record);
    log_info(concat("sync=", record.sync, ": ", async_summary(record)));
  }

  void join(const std::string& why) {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      if (!stop_serving_) end_reason_ = why;
    }
    stop_serving_ = true;
    thread_.join();
  }

  std::string key() const { return concat("served | ", async_.key_prefix(), options_.num_workers); }

  std::vector<FlatPiece> saved_pieces() const {
    // With local steps each worker has its own optimizer; a checkpoint holds that of worker 0, this thread.
    return joined((current_ ? *current_ : *snapshot()).pieces, worker_->pieces());
  }

  std::vector<FlatPiece> loaded_pieces() {
    std::vector<FlatPiece> pieces = joined(async_.load(key()), worker_->pieces());
    async_.queue.give_all_back();  // Outstanding work is done again, also that of workers that had joined.
    if (const std::string& compress = run_.job.layout.compress; compress != "none" && run_.reports_here())
      log_info(concat("compress=", compress, ": the residuals of the workers are not saved; all begin at zero again"));
    return pieces;
  }

  void after_loading() {
    served_.set_weights(own_.weights);
    served_.set_buffers(own_.copy_of_buffers());
    worker_->load_counts();
    async_.loaded();
  }

  RunSetup& run_;
  ModelServerOptions options_;
  WorkItemRunner work_item_runner_;           // On run_.model.
  std::shared_ptr<LayerGraph> served_model_;  // A second model, which holds the newest version.
  ModelTensors own_, served_;
  AsyncTraining async_;
  std::unique_ptr<AsyncWorker> worker_;  // Worker 0, on run_.model.

  int64_t steps_served_ = 0;
  double computing_seconds_ = 0, push_seconds_ = 0;  // Of the current step.

  std::mutex mutex_;  // Guards the next four.
  std::deque<FinishedSteps> finished_;
  size_t num_snapshots_ = 0;  // In finished_, or being processed.
  std::exception_ptr failure_;
  std::string end_reason_;
  std::atomic<bool> stop_serving_ = false, is_over_ = false;
  std::thread thread_;

  std::unique_ptr<Snapshot> current_;  // The version in run_.model when it was last evaluated or saved.
};

}  // namespace

TrainResult serve_run(RunSetup& run, ModelServerOptions options, const ConnectFunction& connect) {
  ServedRun served(run, std::move(options));
  RunSaver saver(run);
  begin_run(run);
  RunReporter reporter(run, saver, clock_only_pace);
  auto [server, client] = connect(served.served_tensors());
  return served.train(std::move(server), std::move(client), saver, reporter);
}

}  // namespace cohort
