// Two threads. One serves: it owns the newest version, tickets and accounts. Where a step is over that asks for evaluation or a checkpoint
// it copies a whole version and goes on; the other, which is also worker 0, evaluates and saves that copy between two of its tickets, so
// that nobody waits for it. At most kMostSnapshots are under way; then no tickets are handed out until one is done.
//
// A checkpoint holds that version as "model/..." and "optimizer/...", as every run's does, and beside it "async/state" (JSON: tickets,
// accounts, mode) and the mode's tensors. Work that was in hand is done again.
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

constexpr size_t kMostSnapshots = 2;
constexpr double kLookSeconds = 0.05;

}  // namespace

ServedRun::ServedRun(RunSetup& run, int num_workers, std::function<bool(int)> may_come)
    : run_(run),
      num_workers_(num_workers),
      may_come_(std::move(may_come)),
      ticket_work_(run.job, *run.data.train, *run.model, run.teacher.get()),
      served_model_(initial_model(run.config, run.data.train->shape()).model),
      own_(*run.model),
      served_(*served_model_),
      async_(run, *served_model_, num_workers, name_settings("--workers ")),
      side_(make_worker_side(*run.model, run.job)) {
  run.parallel.strategy->hold_gradients();
  save_state_of(run, {[this] { return saved_pieces(); }, [this] { return loaded_pieces(); }, [this] { after_loading(); }});
}

ServedRun::~ServedRun() { join("rank 0 has ended"); }

void ServedRun::join(const std::string& why) {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    if (!wants_end_) end_reason_ = why;
  }
  wants_end_ = true;
  thread_.join();
}

// ---- the serving thread ----

void ServedRun::serve(MessageServer messages, const std::string& configuration) {
  std::optional<ModelServer> server;
  std::string reason;
  try {
    server.emplace(ServerParts{.mode = *async_.mode,
                               .tickets = async_.tickets,
                               .accounts = async_.accounts,
                               .numbers = [this] { return async_.numbers(); },
                               .applied = [this](const ServedPush& push) { applied(push); },
                               .configuration = configuration,
                               .most_ahead = async_.most_ahead(),
                               .fingerprint = fingerprint_,
                               .may_join = !fingerprint_.empty(),
                               .num_workers = num_workers_,
                               .may_come = may_come_,
                               .rounds = async_.quorum,
                               .gate = RoundGate(std::max(1, async_.sync.quorum), async_.sync.grace_seconds)},
                   std::move(messages));
    while (!is_over_ && !wants_end_) {
      server->act(kLookSeconds);
      const std::lock_guard lock(mutex_);
      server->hold(is_over_ || num_snapshots_ >= kMostSnapshots);
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

/// Computing seconds of a step are the mean of the workers.
void ServedRun::applied(const ServedPush& push) {
  async_.window.add(push);
  computing_seconds_ += push.computing_seconds;
  push_seconds_ += push.push_seconds;
  const int64_t from = steps_served_, to = async_.tickets.steps_done();
  if (to <= from) return;
  steps_served_ = to;
  StepsOver over{.from = from, .step = async_.window.result(run_, from, to, computing_seconds_ / num_workers_, push_seconds_)};
  async_.window.begin();
  computing_seconds_ = push_seconds_ = 0;
  const bool ends = to >= run_.total_steps || over.step.stop;
  const bool asks = ends || passes_multiple(from, to, run_.config.eval_every) || passes_multiple(from, to, run_.config.checkpoint_every);
  if (asks) over.snapshot = snapshot();
  is_over_ = ends;
  const std::lock_guard lock(mutex_);
  num_snapshots_ += asks ? 1 : 0;
  over_.push_back(std::move(over));
}

std::unique_ptr<ServedRun::Snapshot> ServedRun::snapshot() const {
  auto out = std::make_unique<Snapshot>();
  async_.model->show();
  out->weights = served_.copy_of_weights();
  out->buffers = served_.copy_of_buffers();
  out->pieces = async_.model->saved_pieces();
  // Trainings that are compared have what every training has.
  if (!run_.options.reports) std::erase_if(out->pieces, [](const FlatPiece& piece) { return piece.name.starts_with("async/"); });
  for (FlatPiece& piece : out->pieces) piece.values = piece.values.detach().clone();
  if (run_.options.reports) out->pieces.push_back(async_state_piece(async_.state(key())));
  return out;
}

// ---- the caller's thread ----

void ServedRun::take_up(AfterStep& after) {
  while (!after.ends()) {
    StepsOver over;
    {
      const std::lock_guard lock(mutex_);
      if (over_.empty()) return;
      over = std::move(over_.front());
      over_.pop_front();
    }
    const bool has_snapshot = over.snapshot != nullptr;
    if (has_snapshot) {
      own_.set_weights(over.snapshot->weights);
      own_.set_buffers(over.snapshot->buffers);
      shown_ = std::move(over.snapshot);
    }
    if (run_.status) run_.status[0].last_step = over.step.metrics.step;
    after.finish(over.from, over.step);
    const std::lock_guard lock(mutex_);
    num_snapshots_ -= has_snapshot ? 1 : 0;
    if (after.ends()) wants_end_ = true;
  }
}

/// As worker 0, which also takes up what is over.
void ServedRun::work(MessageClient client, const std::string& configuration, AfterStep& after) {
  const Tickets tickets(async_.options);
  ServedWorker worker(
      *side_, ticket_source(*side_, tickets, ticket_work_, run_.job, run_.total_steps), std::move(client),
      {.worker = 0, .hello = configuration, .injection = run_.injection, .timeout_seconds = run_.config.timeout, .between_tickets = [&] {
         take_up(after);
       }});
  worker.run();
  take_up(after);
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
                      human_bytes(async_.model->push_bytes()), " up for a ticket of ", async_.tickets.ticket_of(0, 0).num_samples(),
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
    // Of both the one that is not a consequence: a failure here is told to the server, which then fails with it.
    if (own && !(failure_ && lost_server)) std::rethrow_exception(own);
    if (failure_) std::rethrow_exception(failure_);
  }
  after.evaluate_at_end();
  if (run_.reports_here()) tell_end(after.result().steps, reporter);
  reporter.end(after.result());
  return after.result();
}

void ServedRun::tell_end(int64_t steps, RunReporter& reporter) const {
  const AsyncRecord record = async_.record(steps);
  reporter.event(record);
  log_info(concat("sync=", record.sync, ": ", summary_of(record)));
}

std::string ServedRun::key() const { return concat("served | ", async_.how(), num_workers_); }

/// With local steps each worker has an optimizer; a checkpoint has that of worker 0, which this thread is.
void ServedRun::add_optimizer(std::vector<FlatPiece>& pieces) const {
  for (FlatPiece& piece : side_->pieces()) pieces.push_back(std::move(piece));
}

std::vector<FlatPiece> ServedRun::saved_pieces() const {
  std::vector<FlatPiece> pieces = (shown_ ? *shown_ : *snapshot()).pieces;
  add_optimizer(pieces);
  return pieces;
}

std::vector<FlatPiece> ServedRun::loaded_pieces() {
  std::vector<FlatPiece> pieces = async_.load(key());
  add_optimizer(pieces);
  async_.tickets.give_all_back();  // What workers had in hand is done again, also that of those who had joined.
  if (const std::string& compress = run_.job.layout.compress; compress != "none" && run_.reports_here())
    log_info(concat("compress=", compress, ": what the workers had left out of their pushes went with them; all begin at zero again"));
  return pieces;
}

void ServedRun::after_loading() {
  served_.set_weights(own_.weights);
  served_.set_buffers(own_.copy_of_buffers());
  side_->load_counts();
  async_.loaded();
}

}  // namespace cohort
