// Rank 0's loop over a study: hand out trials to idle workers, receive messages, store what is decided. All decisions are the queue's
// (study/search/study_queue.h); this file moves trials between ranks, files and the store.
//
// A trial is in exactly one place at any time, so that a kill loses at most what its runner had not yet saved: the store (decided; one
// transaction), in_progress/*.trial (ended, a lower id still runs), or in_progress/*.snapshot (running). Files of a trial are removed after
// it was stored; those that a kill leaves in between are removed by the next start.
//
// Cost: one order and one result per trial, a step report about every second, and a bound per worker where a decision changes it.
#include "cohort/trials/study_coordinator.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/study/store/in_progress.h"
#include "cohort/trials/study_progress.h"
#include "cohort/world/stop.h"

namespace cohort {
namespace {
constexpr double kOverdueFactor = 5;  ///< A silence is overdue at this many times the usual one.
constexpr double kNewWeight = 0.25;   ///< Weight of the latest interval in the running mean.
}  // namespace

void SilenceWatch::begin(double now) {
  received_at_ = now;
  reported_seconds_ = 0;
}

void SilenceWatch::on_message(double now) {
  const double seconds = now - received_at_;
  // A reported silence does not enter the mean.
  if (reported_seconds_ == 0) usual_seconds_ = usual_seconds_ < 0 ? seconds : (1 - kNewWeight) * usual_seconds_ + kNewWeight * seconds;
  begin(now);
}

std::optional<double> SilenceWatch::overdue(double now) {
  const double seconds = now - received_at_;
  // The first message may take long.
  const double patience = usual_seconds_ < 0 ? kOverdueFactor * least_seconds_ : std::max(least_seconds_, kOverdueFactor * usual_seconds_);
  if (seconds < std::max(patience, 2 * reported_seconds_)) return std::nullopt;
  reported_seconds_ = seconds;
  return seconds;
}

using study::BatchSpec;
using study::StudyQueue;
using study::Trial;

struct StudyCoordinator::Running {
  StudyQueue::Pick pick;
  study::TrialOrder order;
  study::TrialBound sent_bound;
  int64_t step = 0, first_step = -1;  ///< Reported by the worker, last and first; a resumed trial begins at first_step.
};

struct StudyCoordinator::Worker {
  int rank = 0;
  std::optional<PeerId> peer;  ///< None before it has connected, and after it was lost.
  bool has_connected = false;
  bool leads = false;     ///< It is the first rank of a team in this phase.
  bool ready = false;     ///< It has joined the phase.
  bool has_left = false;  ///< It has announced its end.
  std::optional<Running> running;
  SilenceWatch silence;  ///< Active while it runs a trial, or should become ready.
};

StudyCoordinator::StudyCoordinator(study::StudySpec spec, CoordinatorOptions options, MessageServer server)
    : spec_(std::move(spec)),
      options_(std::move(options)),
      server_(std::move(server)),
      queue_(spec_, options_.num_ranks),
      progress_(!options_.quiet && !options_.json) {
  for (int rank = 0; rank < options_.num_ranks; ++rank)
    workers_.push_back(std::make_unique<Worker>(Worker{.rank = rank, .silence = SilenceWatch(options_.timeout)}));
}

StudyCoordinator::~StudyCoordinator() = default;

void StudyCoordinator::wait_for_ranks() {
  const auto begin = std::chrono::steady_clock::now();
  const auto missing = [&] {
    std::vector<std::string> ranks;
    for (const auto& worker : workers_)
      if (!worker->has_connected) ranks.push_back(std::to_string(worker->rank));
    return ranks;
  };
  while (!missing().empty() && !stop_requested()) {
    if (seconds_since(begin) > options_.join_seconds)
      fail(ErrorCode::kEnvironment, "rank(s) ", join(missing(), " "), " did not connect to ", server_.endpoint(), " within ",
           options_.join_seconds, " s", server_.num_refused() > 0 ? "; connections with another secret were refused" : "");
    if (const auto event = server_.poll(0.1)) on_event(*event);
  }
}

void StudyCoordinator::open() {
  store_ = std::make_unique<study::Store>(study::Store::open(options_.folder, spec_));
  in_progress_ = std::make_unique<study::InProgress>(options_.folder);
  if (options_.num_train_samples > 0) store_->set_note("num_train_samples", std::to_string(options_.num_train_samples));
  if (spec_.halving) store_->set_note("halving", Json(halving_warning()).dump());
  std::map<int64_t, size_t> index;
  for (size_t i = 0; i < spec_.batches.size(); ++i) index[spec_.batches[i].batch_size] = i;
  int64_t num_stored = 0;
  std::vector<std::string> others;
  {
    const study::StudyData stored = store_->read();
    for (const study::BatchStudy& batch : stored.batches) {
      if (!index.contains(batch.batch_size)) {
        others.push_back(std::to_string(batch.batch_size));
        continue;
      }
      restore_batch(index[batch.batch_size], batch.trials);
      num_stored += static_cast<int64_t>(batch.trials.size());
    }
  }
  int64_t num_ended = 0;
  in_progress_->restore(
      [&](int64_t batch_size, int64_t id, int64_t train_steps) {
        const auto at = index.find(batch_size);
        if (at == index.end()) return true;  // Kept for a run with this batch size.
        return train_steps == spec_.batches[at->second].train_steps && !queue_.batch(at->second).done() &&
               id >= queue_.batch(at->second).num_taken();
      },
      [&](int64_t batch_size, const Trial& trial) {
        if (!index.contains(batch_size)) return;
        queue_.ended(index[batch_size], summarise(trial, queue_.rule(), spec_.goals.front().metric));
        ++num_ended;
      });
  for (size_t i = 0; i < spec_.batches.size(); ++i) store_decided(i, nullptr);
  if (options_.quiet) return;
  if (num_stored + num_ended > 0)
    log_info(concat("going on with ", options_.folder, ": ", num_stored + num_ended, " trials are done",
                    queue_.phase() ? "" : "; nothing is left to do, it holds all that is asked for"));
  if (!others.empty()) log_info(concat("not asked for, and left as it is: batch size ", join(others, ", ")));
}

void StudyCoordinator::restore_batch(size_t index, const std::vector<Trial>& stored) {
  for (const Trial& trial : stored)
    if (!queue_.batch(index).done() || spec_.halving)
      queue_.batch(index).restore(summarise(trial, queue_.rule(), spec_.goals.front().metric));
}

int StudyCoordinator::run() {
  try {
    wait_for_ranks();
    if (options_.on_all_connected) options_.on_all_connected();
    open();
    if (spec_.halving) log_warning(halving_warning());
    const int code = run_phases();
    end(code, "", options_.stop_seconds);
    show_progress();
    progress_.finish();
    print_results(code);
    return code;
  } catch (const std::exception& error) {
    progress_.finish();
    if (!ending_) {
      ignores_messages_ = true;
      try {
        const auto* own = dynamic_cast<const Error*>(&error);
        end(own ? static_cast<int>(own->code()) : static_cast<int>(ErrorCode::kFailed), error.what(), 2);
      } catch (const Error&) {
        // Workers that cannot be reached notice that rank 0 is gone.
      }
    }
    throw;
  }
}

int StudyCoordinator::run_phases() {
  std::optional<int> current;
  for (;;) {
    if (stop_requested()) return static_cast<int>(ErrorCode::kInterrupted);
    const std::optional<int> phase = queue_.phase();
    if (!phase && num_running() == 0) return 0;
    if (phase != current && num_running() == 0) {
      start_phase(*phase);
      current = phase;
    }
    // The next phase starts only after the last trials of this one, needed or not, have ended.
    if (phase && phase == current) hand_out();
    show_progress();
    receive(0.1);
    if (!team_failure_.empty()) fail_without();
    warn_of_silent_workers();
  }
}

int StudyCoordinator::num_running() const {
  return static_cast<int>(std::count_if(workers_.begin(), workers_.end(), [](const auto& worker) { return worker->running.has_value(); }));
}

bool StudyCoordinator::can_train() const {
  return std::any_of(workers_.begin(), workers_.end(), [](const auto& worker) { return worker->peer && worker->leads; });
}

void StudyCoordinator::start_phase(int team) {
  const int num_ranks = static_cast<int>(workers_.size());
  team_ = team;
  if (team_ > 1 && !lost_.empty()) fail_without();
  if (const int idle = num_ranks % team; idle > 0)
    log_info(concat("batches that need ", team, " ranks together leave ", idle, " of ", num_ranks, " ranks idle"));
  for (auto& worker : workers_) {
    worker->leads = worker->rank % team == 0 && worker->rank + team <= num_ranks;
    worker->ready = false;
    worker->silence.begin(steady_seconds());
    send(*worker, {{"do", "phase"}, {"team", team}});
  }
  has_begun_ = true;
  if (!can_train()) fail(ErrorCode::kEnvironment, "no rank is left that could train: ", join(lost_, ", "));
}

void StudyCoordinator::hand_out() {
  for (auto& worker : workers_) {
    if (!worker->peer || !worker->ready || worker->running) continue;
    const std::optional<StudyQueue::Pick> pick = queue_.next();
    if (!pick) return;
    const BatchSpec& batch = spec_.batches[pick->batch];
    Running running{*pick, {}, queue_.batch(pick->batch).bound(pick->id)};
    running.order = {.batch_size = batch.batch_size,
                     .id = pick->id,
                     .train_steps = batch.train_steps,
                     .parameters = parameters_of_trial(spec_, batch, pick->id),
                     .seed = seed_of_trial(spec_, pick->id),
                     .snapshot = in_progress_->snapshot(batch.batch_size, pick->id, batch.train_steps)};
    worker->running = running;
    worker->silence.begin(steady_seconds());
    send(*worker, {{"do", "run"}, {"order", to_json(running.order)}, {"bound", to_json(running.sent_bound)}});
  }
}

void StudyCoordinator::receive(double seconds) {
  for (auto event = server_.poll(seconds); event; event = server_.poll(0)) on_event(*event);
}

void StudyCoordinator::on_event(const PeerEvent& event) {
  if (event.kind == PeerEvent::Kind::kJoined) return on_joined(event);
  for (auto& worker : workers_) {
    if (worker->peer != event.peer) continue;
    if (event.kind == PeerEvent::Kind::kLost) on_lost(*worker, event.why);
    else on_message(*worker, event.message.text);
    return;
  }
}

/// A lost rank cannot reconnect, because its trial was given to another.
void StudyCoordinator::on_joined(const PeerEvent& event) {
  const auto found = std::find_if(workers_.begin(), workers_.end(), [&](const auto& worker) {
    return event.name == concat("rank ", worker->rank) && !worker->has_connected;
  });
  if (found == workers_.end()) {
    server_.dismiss(event.peer, concat("the study goes on without ", event.name));
    return;
  }
  (*found)->peer = event.peer;
  (*found)->has_connected = true;
}

void StudyCoordinator::on_message(Worker& worker, const std::string& message) {
  if (worker.running) worker.silence.on_message(steady_seconds());
  try {
    handle(worker, parse_strict_ordered_json(message, {.path = concat("rank ", worker.rank)}));
  } catch (const nlohmann::json::exception&) {
    fail(ErrorCode::kFailed, "rank ", worker.rank, " said ", quote_text(message), ", which is not understood");
  }
}

/// A rank whose connection is closed is lost; one that is stopped or hangs is waited for, with a warning.
void StudyCoordinator::warn_of_silent_workers() {
  for (auto& worker : workers_) {
    const bool is_expected = worker->running || (worker->leads && !worker->ready);
    if (!worker->peer || !is_expected) continue;
    const std::optional<double> seconds = worker->silence.overdue(steady_seconds());
    if (!seconds) continue;
    const double usual = worker->silence.usual_seconds();
    progress_.note(concat("nothing has come from rank ", worker->rank, " for ", human_seconds(*seconds),
                          usual < 0 ? "" : concat(" (usually every ", human_seconds(usual), ")"), "; ",
                          worker->running ? concat("it runs trial ", worker->running->pick.id, " of batch size ",
                                                   worker->running->order.batch_size, " and is waited for")
                                          : "it has not begun",
                          ". Where it is stopped or hangs, end it: the same command goes on with ", options_.folder),
                   LogLevel::kWarning);
  }
}

void StudyCoordinator::handle(Worker& worker, const Json& json) {
  const std::string is = json.value("is", "");
  if (is == "bye" || is == "failed") worker.has_left = true;
  if (ignores_messages_ || is == "bye") return;
  if (is == "ready") {
    // A slow worker may report ready for an earlier phase; in this one it may not lead a team.
    worker.ready = json.at("team").get<int>() == team_;
  } else if (is == "at") {
    if (!worker.running) return;
    worker.running->step = json.at("step").get<int64_t>();
    if (worker.running->first_step < 0) worker.running->first_step = worker.running->step;
  } else if (is == "ended") {
    trial_ended(worker, json);
  } else if (is == "interrupted") {
    if (worker.running) queue_.lost(worker.running->pick);
    worker.running.reset();
    request_stop();
  } else if (is == "failed") {
    const auto code = static_cast<ErrorCode>(json.at("code").get<int>());
    const std::string text = concat("rank ", worker.rank, ": ", json.at("error").get<std::string>());
    if (team_ > 1 && code == ErrorCode::kEnvironment) {
      team_failure_ = text;
      return;
    }
    failed_rank_ = worker.rank;
    throw Error(code, text);
  } else {
    fail(ErrorCode::kFailed, "rank ", worker.rank, " said '", is, "', which is not understood");
  }
}

void StudyCoordinator::trial_ended(Worker& worker, const Json& json) {
  if (!worker.running) fail(ErrorCode::kFailed, "rank ", worker.rank, " ended a trial that it was not given");
  const Running running = *worker.running;
  const Trial trial = study::trial_from_json(json.at("trial"), concat("what rank ", worker.rank, " said"));
  worker.running.reset();
  const size_t batch = running.pick.batch;
  work_done_ += queue_.cost(batch, std::max<int64_t>(0, trial.steps - std::max<int64_t>(0, running.first_step)));
  if (queue_.batch(batch).done()) in_progress_->remove(running.order.batch_size, trial.id, running.order.train_steps);
  queue_.ended(batch, summarise(trial, queue_.rule(), spec_.goals.front().metric));
  store_decided(batch, &trial);
}

/// Stores the trials that are decided now; the trial that just ended is written to a file where it is not.
void StudyCoordinator::store_decided(size_t batch, const Trial* just_ended) {
  const int64_t batch_size = spec_.batches[batch].batch_size, train_steps = spec_.batches[batch].train_steps;
  const bool was_done = queue_.batch(batch).done();
  bool stored = was_done;
  for (const study::FinalTrial& decided : queue_.batch(batch).take_final()) {
    const bool is_this = just_ended && decided.id == just_ended->id;
    Trial trial = is_this ? *just_ended : in_progress_->read(batch_size, decided.id, train_steps);
    stored = stored || is_this;
    trial.status = decided.status;
    trial.steps = decided.steps;
    trial.measurements.resize(decided.num_measurements);
    store_->add(batch_size, trial);
    in_progress_->remove(batch_size, trial.id, train_steps);
    print_trial(batch, trial);
  }
  if (just_ended && !stored && !queue_.batch(batch).done()) in_progress_->keep(batch_size, train_steps, *just_ended);
  if (!was_done && queue_.batch(batch).done()) {
    if (queue_.batch(batch).num_kept() < spec_.batches[batch].num_trials && !spec_.halving)
      progress_.note(concat("batch size ", batch_size, ": only ", queue_.batch(batch).num_kept(), " of ", queue_.batch(batch).num_taken(),
                            " points did not diverge; ", spec_.batches[batch].num_trials, " were asked for, and no more are drawn"));
    // Removes the files of points that turned out not to be needed.
    in_progress_->restore([&](int64_t size, int64_t, int64_t) { return size != batch_size; }, [](int64_t, const Trial&) {});
  }
  push_bounds(batch);
}

void StudyCoordinator::push_bounds(size_t batch) {
  for (auto& worker : workers_) {
    if (!worker->peer || !worker->running || worker->running->pick.batch != batch) continue;
    const study::TrialBound bound = queue_.batch(batch).bound(worker->running->pick.id);
    if (bound == worker->running->sent_bound) continue;
    worker->running->sent_bound = bound;
    send(*worker, {{"do", "bound"}, {"bound", to_json(bound)}});
  }
}

void StudyCoordinator::send(Worker& worker, const Json& message) {
  if (!worker.peer) return;
  try {
    server_.send(*worker.peer, {.text = message.dump()});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kEnvironment) throw;
    on_lost(worker, error.what());
  }
}

void StudyCoordinator::on_lost(Worker& worker, const std::string& why) {
  if (!worker.peer) return;
  server_.dismiss(*worker.peer, why);
  worker.peer.reset();
  if (worker.has_left || ending_) return;
  lost_.push_back(why);
  if (team_ > 1 && worker.rank / team_ < static_cast<int>(workers_.size()) / team_) {
    team_failure_ = why;
    return;
  }
  if (worker.running) {
    queue_.lost(worker.running->pick);
    progress_.note(
        concat(why, "; trial ", worker.running->pick.id, " of batch size ", worker.running->order.batch_size, " goes to another"));
    worker.running.reset();
  } else {
    progress_.note(why);
  }
  if (has_begun_ && !can_train()) fail(ErrorCode::kEnvironment, "no rank is left that could train: ", why);
}

/// A team needs all its ranks. The remaining ones report the failure first, with ranks of the team: waits for the lost connections, to name
/// the ranks of the job.
void StudyCoordinator::fail_without() {
  ignores_messages_ = true;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  while (std::chrono::steady_clock::now() < deadline) receive(0.05);
  fail(ErrorCode::kEnvironment, lost_.empty() ? team_failure_ : join(lost_, ", "), "; a team of ", team_,
       " ranks needs all of them; the same command goes on with ", options_.folder);
}

/// Tells all workers to end, and receives their last messages for up to `drain_seconds`; trials that end meanwhile are kept.
void StudyCoordinator::end(int code, const std::string& why, double drain_seconds) {
  ending_ = true;
  for (auto& worker : workers_) send(*worker, {{"do", "end"}, {"code", code}, {"error", why}});
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(drain_seconds);
  const auto all_gone = [&] {
    return std::all_of(workers_.begin(), workers_.end(), [](const auto& worker) { return !worker->peer || worker->has_left; });
  };
  while (!all_gone() && std::chrono::steady_clock::now() < deadline) receive(0.05);
}

void StudyCoordinator::show_progress() {
  StudyProgress::State state;
  state.work_done = work_done_;
  state.work_left = queue_.cost_left();
  for (size_t i = 0; i < queue_.num_batches(); ++i) {
    state.trials_done += queue_.batch(i).num_kept();
    state.trials_left += queue_.batch(i).num_left();
  }
  for (const auto& worker : workers_) {
    if (!worker->running) continue;
    ++state.running;
    const Running& running = *worker->running;
    const double done = queue_.cost(running.pick.batch, running.step - std::max<int64_t>(0, running.first_step));
    state.work_done += done;
    state.work_left = std::max(0.0, state.work_left - done);
  }
  progress_.update(state);
}

void StudyCoordinator::print_trial(size_t batch, const Trial& trial) {
  if (!options_.json) return;
  std::printf("%s\n", trial_line(spec_.batches[batch].batch_size, trial).c_str());
  std::fflush(stdout);
}

/// Called when all trials of this run are stored. Files of other batch sizes, from an interrupted run, are kept.
void StudyCoordinator::remove_files() {
  bool has_others = false;
  in_progress_->restore(
      [&](int64_t batch_size, int64_t, int64_t) {
        const bool is_other =
            std::none_of(spec_.batches.begin(), spec_.batches.end(), [&](const BatchSpec& one) { return one.batch_size == batch_size; });
        has_others = has_others || is_other;
        return is_other;
      },
      [](int64_t, const Trial&) {});
  if (!has_others) in_progress_->remove_all();
}

void StudyCoordinator::print_results(int code) {
  const study::StudyData data = store_->read();
  store_->set_note("work_saved", work_saved(data, store_->spec()).dump());
  if (code != 0) {
    log_info(concat("stopped; the same command goes on with ", options_.folder));
    return;
  }
  remove_files();
  if (!options_.summary) return;
  if (options_.json) print_steps_lines(data, spec_);
  else print_steps_table(data, spec_, options_.folder);
}

}  // namespace cohort
