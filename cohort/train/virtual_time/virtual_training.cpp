// Events of the clock until all tickets are finished. A step is over when as many samples have been applied as the sampler's steps up to it
// have (docs/algorithms/asynchronous.md): then its line, and evaluation and checkpoint where they are due, between two events.
//
// A checkpoint holds the newest whole version as "model/..." and "optimizer/...", as every run's does, and beside them all of the virtual
// world: "async/state" is JSON (tickets, clock, workers, accounts, key()), other "async/..." are tensors of the mode and of work in flight.
// A run that is not of the same world (other workers, sync or remedy) goes on from the version alone.
#include "cohort/train/virtual_time/virtual_training.h"

#include <algorithm>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/log.h"
#include "cohort/base/statistics.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/train/async/async_run.h"
#include "cohort/train/virtual_time/saved_state.h"
#include "cohort/world/stop.h"

namespace cohort {

VirtualTraining::VirtualTraining(RunSetup& run)
    : run_(run),
      spec_(parse_virtual(run.config.virtual_time)),
      sync_(parse_sync(run.job.layout.sync)),
      ticket_options_(
          ticket_options(run.config, *run.data.train, *run.model, run.total_steps, spec_.workers, name_settings("--virtual workers="))),
      tickets_(ticket_options_),
      ticket_work_(run.job, *run.data.train, *run.model),
      clock_(spec_, run.config.seed),
      accounts_(spec_.workers) {
  run.parallel.strategy->hold_gradients();
  if (spec_.compute_seconds == 0) {
    run.config.virtual_time = with_compute_seconds(run.config.virtual_time, measured_compute_seconds());
    spec_ = parse_virtual(run.config.virtual_time);
  }
  mode_ = make_async_mode(*run.model, run, spec_.workers, {.newest = spec_.newest, .replaces = spec_.replaces});
  if (sync_.kind == SyncKind::kStep) rounds_ = std::make_unique<StepRounds>(parts());
  else workers_ = std::make_unique<VirtualWorkers>(parts());
  run.parallel.strategy = std::make_unique<SavedState>(
      std::move(run.parallel.strategy),
      StateOwner{[this] { return saved_pieces(); }, [this] { return loaded_pieces(); }, [this] { after_loading(); }});
}

VirtualParts VirtualTraining::parts() {
  const auto full_ticket = static_cast<double>(tickets_.ticket_of(0, 0).num_samples());
  return {
      .spec = spec_,
      .clock = clock_,
      .tickets = tickets_,
      .mode = *mode_,
      .ticket_work = ticket_work_,
      .accounts = accounts_,
      .numbers = [this] { return StepNumbers{run_.job.learning_rate.at(tickets_.steps_done(), run_.total_steps), run_.config.clip_norm}; },
      .seconds_of = [this, full_ticket](
                        const Ticket& ticket) { return spec_.compute_seconds * static_cast<double>(ticket.num_samples()) / full_ticket; },
      .most_ahead = sync_.kind == SyncKind::kStale ? sync_.number : -1};
}

/// Of forward and backward of the first ticket, real seconds: the median of a few.
double VirtualTraining::measured_compute_seconds() {
  std::vector<double> seconds;
  for (int i = 0; i < 7; ++i) {
    const double began = steady_seconds();
    ticket_work_.compute(tickets_.ticket_of(0, 0), run_.config.lr);
    if (i > 1) seconds.push_back(steady_seconds() - began);
  }
  return median(seconds);
}

void VirtualTraining::tell_beginning() const {
  log_info(concat("virtual clock: ", spec_.workers, spec_.workers == 1 ? " worker" : " workers", ", sync=", to_text(sync_), ", ",
                  human_seconds(spec_.compute_seconds), " a ticket of ", tickets_.ticket_of(0, 0).num_samples(), " samples at speed 1, ",
                  human_bytes(mode_->bytes_in_flight()), " for the work of each in flight"));
}

void VirtualTraining::tell_end(RunReporter& reporter) const {
  AsyncRecord record = accounts_.record();
  record.step = result_.steps;
  record.sync = to_text(sync_);
  record.remedy = run_.config.remedy;
  record.clock = run_.config.virtual_time;
  record.virtual_seconds = clock_.now();
  if (clock_.now() > 0) record.samples_per_virtual_second = static_cast<double>(record.samples) / clock_.now();
  record.bytes_in_flight_of_worker = mode_->bytes_in_flight();
  for (AsyncRecord::Worker& worker : record.workers) {
    worker.speed = clock_.speed(static_cast<int>(worker.worker));
    if (workers_) worker.waiting_seconds += workers_->waiting_seconds(static_cast<int>(worker.worker));
  }
  reporter.event(record);
  log_info(concat("virtual clock: ", human_seconds(clock_.now()), ", ", static_cast<int64_t>(record.samples_per_virtual_second),
                  " samples a second, ", with_commas(record.pushes), " pushes, half of them at most ", record.staleness_median,
                  " pushes late and 99 % at most ", record.staleness_tail, "; ", record.dropped, " dropped, ", record.lost, " lost with ",
                  record.deaths, record.deaths == 1 ? " death" : " deaths"));
}

void VirtualTraining::begin_window() {
  window_ = {.began = steady_seconds(),
             .compute_seconds = rounds_ ? rounds_->compute_seconds() : workers_->compute_seconds(),
             .push_seconds = rounds_ ? rounds_->push_seconds() : workers_->push_seconds()};
}

void VirtualTraining::add(const AppliedPush& push) {
  window_.loss += push.loss;
  window_.weight += push.ticket.weight();
  window_.samples += push.ticket.num_samples();
  window_.gradient_norm = push.outcome.gradient_norm;
}

/// Seconds are real ones, since the step before.
StepResult VirtualTraining::step_result(int64_t step) {
  StepResult out;
  StepRecord& m = out.metrics;
  m.step = step;
  m.loss = static_cast<float>(window_.loss / window_.weight);  // As losses of ranks travel.
  m.step_seconds = steady_seconds() - window_.began;
  m.samples_per_second = static_cast<double>(window_.samples) / m.step_seconds;
  m.data_seconds = m.exchange_seconds = 0;
  m.compute_seconds = (rounds_ ? rounds_->compute_seconds() : workers_->compute_seconds()) - window_.compute_seconds;
  m.optimizer_seconds = (rounds_ ? rounds_->push_seconds() : workers_->push_seconds()) - window_.push_seconds;
  m.learning_rate = run_.job.learning_rate.at(step - 1, run_.total_steps);
  if (run_.config.clip_norm > 0) m.gradient_norm = window_.gradient_norm;
  m.virtual_seconds = clock_.now();
  out.stop = stop_requested();
  out.num_samples = window_.samples;
  return out;
}

/// Steps after `from` up to `to` are over: more than one where the last push of an epoch weighed more than the epoch's last step.
void VirtualTraining::finish_steps(int64_t from, int64_t to, RunSaver& saver, RunReporter& reporter, RunEvaluator& evaluator) {
  const auto is_due = [&](int64_t every) { return every > 0 && to / every > from / every; };
  StepResult step = step_result(to);
  const bool last = to >= run_.total_steps;
  result_.steps = to;
  result_.loss = step.metrics.loss;
  result_.interrupted = step.stop && !last;
  for (int64_t number = from + 1; number < to; ++number) {
    StepResult before = step;
    before.metrics.step = number;
    before.num_samples = 0;
    reporter.step(before, false);
  }
  reporter.step(step, last || step.stop);
  mode_->show();
  if (is_due(run_.config.eval_every) || last) evaluator.evaluate(to, last, result_);
  reporter.progress(step.metrics);
  ends_ = last || step.stop || evaluator.goal_is_reached(to, result_);
  if (ends_ || evaluator.save_is_due(to) || is_due(run_.config.checkpoint_every)) saver.save(to, ends_, reporter);
  begin_window();
}

TrainResult VirtualTraining::train(RunSaver& saver, RunReporter& reporter) {
  reporter.set_clock([this] { return clock_.now(); });
  reporter.start();
  tell_beginning();
  RunEvaluator evaluator(run_, reporter);
  result_.steps = saver.first_step();
  if (!goes_on_ && rounds_) rounds_->begin();
  if (!goes_on_ && workers_) workers_->begin();
  begin_window();
  while (!ends_ && result_.steps < run_.total_steps) {
    const std::optional<AppliedPush> push = act();
    if (!push) continue;
    add(*push);
    if (tickets_.steps_done() > result_.steps) finish_steps(result_.steps, tickets_.steps_done(), saver, reporter, evaluator);
  }
  mode_->show();
  if (evaluator.evaluated_step() < 0 && !result_.interrupted) evaluator.evaluate(result_.steps, true, result_);  // Nothing was left.
  tell_end(reporter);
  reporter.end(result_);
  return result_;
}

/// What must be the same for workers to go on as they were.
std::string VirtualTraining::key() const { return concat(to_text(sync_), " | ", run_.config.remedy, " | ", run_.config.virtual_time); }

std::vector<FlatPiece> VirtualTraining::saved_pieces() {
  if (rounds_) rounds_->saved();
  const Json state{{"key", key()},
                   {"total_steps", run_.total_steps},
                   {"tickets", tickets_.state()},
                   {"clock", clock_.state()},
                   {"workers", workers_ ? workers_->state() : Json(nullptr)},
                   {"mode", mode_->state()},
                   {"accounts", accounts_.state()}};
  std::vector<FlatPiece> pieces = mode_->saved_pieces();
  pieces.push_back(async_state_piece(state));
  if (workers_)
    for (FlatPiece& piece : workers_->saved_pieces()) pieces.push_back(std::move(piece));
  return pieces;
}

std::vector<FlatPiece> VirtualTraining::loaded_pieces() {
  FoundAsyncState found = find_async_state(run_.config.run, key());
  loaded_text_ = std::move(found.text);
  goes_on_ = !loaded_text_.empty();
  const std::string& where = found.where;
  const Json state = goes_on_ ? Json::parse(loaded_text_) : Json();
  const auto part = [&](const char* name) { return goes_on_ ? state.value(name, Json()) : Json(); };
  std::vector<FlatPiece> pieces = mode_->loaded_pieces(part("mode"), where);
  if (!goes_on_) {
    ticket_options_.first_step = found.step;
    tickets_ = Tickets(ticket_options_);
    return pieces;
  }
  tickets_.load(part("tickets"), where);
  clock_.load(part("clock"), where);
  accounts_.load(part("accounts"), where);
  if (workers_)
    for (FlatPiece& piece : workers_->loaded_pieces(part("workers"), where)) pieces.push_back(std::move(piece));
  return pieces;
}

void VirtualTraining::after_loading() {
  const Json state = goes_on_ ? Json::parse(loaded_text_) : Json();
  mode_->loaded(goes_on_ ? state["mode"] : Json());
  if (!workers_ || !goes_on_) return;
  workers_->loaded();
  if (state.value("total_steps", Json()) != run_.total_steps) workers_->wake();  // Who found no ticket may find one now.
}

}  // namespace cohort
