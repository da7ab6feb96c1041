// Two threads. One serves: it owns the newest version, tickets and accounts. Where a step is over that asks for evaluation or a checkpoint
// it copies a whole version and goes on; the other, which is also worker 0, evaluates and saves that copy between two of its tickets, so
// that nobody waits for it. At most kMostSnapshots are under way; then no tickets are handed out until one is done.
//
// A checkpoint holds that version as "model/..." and "optimizer/...", as every run's does, and beside it "async/state" (JSON: tickets,
// accounts, mode) and the mode's tensors. Work that was in hand is done again.
#include "cohort/train/served/served_run.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/log.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/models/registry.h"
#include "cohort/train/async/async_run.h"
#include "cohort/train/served/served_worker.h"
#include "cohort/train/virtual_time/saved_state.h"
#include "cohort/world/stop.h"

namespace cohort {
namespace {

constexpr size_t kMostSnapshots = 2;
constexpr double kLookSeconds = 0.05;

}  // namespace

ServedRun::ServedRun(RunSetup& run, int num_workers, std::function<bool(int)> may_come)
    : run_(run),
      num_workers_(num_workers),
      may_come_(std::move(may_come)),
      sync_(parse_sync(run.job.layout.sync)),
      ticket_options_(ticket_options(run.config, *run.data.train, *run.model, run.total_steps, num_workers, name_settings("--workers "))),
      ticket_work_(run.job, *run.data.train, *run.model),
      served_model_(build_model(run.config.model, run.data.train->shape(), run.config.seed)),
      own_(*run.model),
      served_(*served_model_),
      mode_(make_async_mode(*served_model_, run, num_workers, {})),
      tickets_(ticket_options_),
      accounts_(num_workers) {
  run.parallel.strategy->hold_gradients();
  run.parallel.strategy = std::make_unique<SavedState>(
      std::move(run.parallel.strategy),
      StateOwner{[this] { return saved_pieces(); }, [this] { return loaded_pieces(); }, [this] { after_loading(); }});
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
    const auto numbers = [this] {
      return StepNumbers{run_.job.learning_rate.at(tickets_.steps_done(), run_.total_steps), run_.config.clip_norm};
    };
    server.emplace(ServerParts{.model = *served_model_,
                               .mode = *mode_,
                               .tickets = tickets_,
                               .accounts = accounts_,
                               .numbers = numbers,
                               .applied = [this](const ServedPush& push) { applied(push); },
                               .configuration = configuration,
                               .most_ahead = sync_.kind == SyncKind::kStale ? sync_.number : -1,
                               .num_workers = num_workers_,
                               .may_come = may_come_},
                   std::move(messages));
    while (!is_over_ && !wants_end_) {
      server->act(kLookSeconds);
      const std::lock_guard lock(mutex_);
      server->hold(num_snapshots_ >= kMostSnapshots);
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

void ServedRun::applied(const ServedPush& push) {
  window_.loss += push.loss;
  window_.weight += push.ticket.weight();
  window_.samples += push.ticket.num_samples();
  window_.gradient_norm = push.outcome.gradient_norm;
  window_.computing_seconds += push.computing_seconds;
  window_.push_seconds += push.push_seconds;
  const int64_t from = steps_served_, to = tickets_.steps_done();
  if (to <= from) return;
  steps_served_ = to;
  StepsOver over{.from = from, .step = step_result(to), .last = to >= run_.total_steps};
  const auto is_due = [&](int64_t every) { return every > 0 && to / every > from / every; };
  const bool asks = over.last || over.step.stop || is_due(run_.config.eval_every) || is_due(run_.config.checkpoint_every);
  if (asks) over.snapshot = snapshot();
  is_over_ = over.last || over.step.stop;
  window_ = {.began = steady_seconds()};
  const std::lock_guard lock(mutex_);
  num_snapshots_ += asks ? 1 : 0;
  over_.push_back(std::move(over));
}

/// Seconds are since the step before; those of computing are the mean of the workers.
StepResult ServedRun::step_result(int64_t step) const {
  StepResult out;
  StepRecord& m = out.metrics;
  m.step = step;
  m.loss = static_cast<float>(window_.loss / window_.weight);  // As losses of ranks travel.
  m.step_seconds = steady_seconds() - window_.began;
  m.samples_per_second = static_cast<double>(window_.samples) / m.step_seconds;
  m.data_seconds = m.exchange_seconds = 0;
  m.compute_seconds = window_.computing_seconds / num_workers_;
  m.optimizer_seconds = window_.push_seconds;
  m.learning_rate = run_.job.learning_rate.at(step - 1, run_.total_steps);
  if (run_.config.clip_norm > 0) m.gradient_norm = window_.gradient_norm;
  out.stop = stop_requested();
  out.num_samples = window_.samples;
  return out;
}

std::unique_ptr<ServedRun::Snapshot> ServedRun::snapshot() const {
  auto out = std::make_unique<Snapshot>();
  out->weights = served_.copy_of_weights();
  out->buffers = served_.copy_of_buffers();
  out->pieces = mode_->saved_pieces();
  // Trainings that are compared have what every training has.
  if (!run_.options.reports) std::erase_if(out->pieces, [](const FlatPiece& piece) { return piece.name.starts_with("async/"); });
  for (FlatPiece& piece : out->pieces) piece.values = piece.values.detach().clone();
  if (!run_.options.reports) return out;
  out->pieces.push_back(async_state_piece(Json{{"key", key()},
                                               {"total_steps", run_.total_steps},
                                               {"tickets", tickets_.state()},
                                               {"mode", mode_->state()},
                                               {"accounts", accounts_.state()}}));
  return out;
}

// ---- the caller's thread ----

void ServedRun::show(const Snapshot& snapshot) {
  own_.set_weights(snapshot.weights);
  own_.set_buffers(snapshot.buffers);
}

void ServedRun::finish_steps(StepsOver over, RunSaver& saver, RunReporter& reporter, RunEvaluator& evaluator) {
  const int64_t from = over.from, to = over.step.metrics.step;
  const auto is_due = [&](int64_t every) { return every > 0 && to / every > from / every; };
  result_.steps = to;
  if (run_.status) run_.status[0].last_step = to;
  result_.loss = over.step.metrics.loss;
  result_.interrupted = over.step.stop && !over.last;
  for (int64_t number = from + 1; number < to; ++number) {  // The last push of an epoch may weigh more than its last step.
    StepResult before = over.step;
    before.metrics.step = number;
    before.num_samples = 0;
    reporter.step(before, false);
  }
  reporter.step(over.step, over.last || over.step.stop);
  if (over.snapshot) {
    show(*over.snapshot);
    shown_ = std::move(over.snapshot);
  }
  if (shown_ && (is_due(run_.config.eval_every) || over.last)) evaluator.evaluate(to, over.last, result_);
  reporter.progress(over.step.metrics);
  ends_ = over.last || over.step.stop || evaluator.goal_is_reached(to, result_);
  if (ends_ || evaluator.save_is_due(to) || is_due(run_.config.checkpoint_every)) saver.save(to, ends_, reporter);
}

void ServedRun::take_up(RunSaver& saver, RunReporter& reporter, RunEvaluator& evaluator) {
  while (!ends_) {
    StepsOver over;
    {
      const std::lock_guard lock(mutex_);
      if (over_.empty()) return;
      over = std::move(over_.front());
      over_.pop_front();
    }
    const bool has_snapshot = over.snapshot != nullptr;
    finish_steps(std::move(over), saver, reporter, evaluator);
    const std::lock_guard lock(mutex_);
    num_snapshots_ -= has_snapshot ? 1 : 0;
    if (ends_) wants_end_ = true;
  }
}

TrainResult ServedRun::train(MessageServer server, MessageClient client, const std::string& configuration, RunSaver& saver,
                             RunReporter& reporter) {
  reporter.start();
  RunEvaluator evaluator(run_, reporter);
  result_.steps = steps_served_ = saver.first_step();
  window_.began = steady_seconds();
  if (run_.options.keep_first) saver.save(result_.steps, /*is_last=*/false, reporter);
  if (result_.steps < run_.total_steps) {
    if (run_.reports_here())
      log_info(concat("sync=", to_text(sync_), ": rank 0 serves ", num_workers_, num_workers_ == 1 ? " worker" : " workers",
                      ", itself among them; ", human_bytes(mode_->pull_bytes()), " down and ", human_bytes(mode_->push_bytes()),
                      " up for a ticket of ", tickets_.ticket_of(0, 0).num_samples(), " samples"));
    thread_ = std::thread([this, &configuration, server = std::move(server)]() mutable { serve(std::move(server), configuration); });
    std::exception_ptr own;
    bool lost_server = false;
    try {
      ServedWorker worker(*run_.model,
                          [this](const WorkOrder& order) {
                            return ticket_work_.compute(Tickets(ticket_options_).ticket_of(order.step, order.share), order.learning_rate);
                          },
                          std::move(client),
                          {.worker = 0,
                           .hello = configuration,
                           .injection = run_.injection,
                           .timeout_seconds = run_.config.timeout,
                           .between_tickets = [&] { take_up(saver, reporter, evaluator); }});
      worker.run();
      take_up(saver, reporter, evaluator);
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
  if (evaluator.evaluated_step() < 0 && !result_.interrupted) evaluator.evaluate(result_.steps, true, result_);  // Nothing was left.
  if (run_.reports_here()) tell_end(reporter);
  reporter.end(result_);
  return result_;
}

void ServedRun::tell_end(RunReporter& reporter) const {
  AsyncRecord record = accounts_.record();
  record.step = result_.steps;
  record.sync = to_text(sync_);
  record.remedy = run_.config.remedy;
  record.bytes_in_flight_of_worker = mode_->bytes_in_flight();
  reporter.event(record);
  log_info(concat("sync=", to_text(sync_), ": ", with_commas(record.pushes), " pushes, half of them at most ", record.staleness_median,
                  " pushes late and 99 % at most ", record.staleness_tail, "; ", record.dropped, " dropped, ", record.lost, " lost with ",
                  record.deaths, record.deaths == 1 ? " worker" : " workers"));
}

/// What must be the same for tickets and accounts to go on as they were.
std::string ServedRun::key() const { return concat("served | ", to_text(sync_), " | ", run_.config.remedy, " | ", num_workers_); }

std::vector<FlatPiece> ServedRun::saved_pieces() const { return (shown_ ? *shown_ : *snapshot()).pieces; }

std::vector<FlatPiece> ServedRun::loaded_pieces() {
  FoundAsyncState found = find_async_state(run_.config.run, key());
  loaded_text_ = std::move(found.text);
  const Json state = loaded_text_.empty() ? Json() : Json::parse(loaded_text_);
  const auto part = [&](const char* name) { return state.is_object() ? state.value(name, Json()) : Json(); };
  std::vector<FlatPiece> pieces = mode_->loaded_pieces(part("mode"), found.where);
  if (loaded_text_.empty()) {
    ticket_options_.first_step = found.step;
    tickets_ = Tickets(ticket_options_);
    return pieces;
  }
  tickets_.load(part("tickets"), found.where);
  for (int worker = 0; worker < num_workers_; ++worker) tickets_.lose(worker);  // What they had in hand is done again.
  accounts_.load(part("accounts"), found.where);
  return pieces;
}

void ServedRun::after_loading() {
  served_.set_weights(own_.weights);
  served_.set_buffers(own_.copy_of_buffers());
  mode_->loaded(loaded_text_.empty() ? Json() : Json::parse(loaded_text_)["mode"]);
}

}  // namespace cohort
