// A worker waits for a message, does what it says, and looks at its link without blocking while it trains: at each evaluation, and after
// steps every kLookSeconds. In a team the first rank alone talks to the coordinator about trials; the others get its orders by an
// all-gather of text. Each waits at most a third of the exchange time-out before it sends an empty order, so that no one times out while
// there is nothing to do.

#include "cohort/trials/study_worker.h"

#include <filesystem>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/study/store/in_progress.h"
#include "cohort/world/stop.h"

namespace cohort {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kLookSeconds = 0.05, kSaySeconds = 1.0;
constexpr double kForever = 1e8;
constexpr double kLastWordSeconds = 5;  ///< Rank 0 waits half a second for all who are gone.
const char* const kWait = "";           ///< Orders inside of a team: nothing to do yet,
const char* const kLeave = "leave";     ///< the phase is over; else a TrialOrder.

}  // namespace

StudyWorker::StudyWorker(const study::StudySpec& spec, const World& world, WorkerOptions options, MakeRunner make_runner,
                         MessageClient link)
    : spec_(spec), world_(world), options_(std::move(options)), make_runner_(std::move(make_runner)), link_(std::move(link)), rule_(spec) {}

Json StudyWorker::next_message(double timeout_seconds) {
  std::optional<std::string> text = std::exchange(pending_, std::nullopt);
  if (!text)
    if (auto message = link_.receive(timeout_seconds)) text = std::move(message->text);
  return text ? Json(parse_strict_ordered_json(*text, {.path = link_.server_name()})) : Json();
}

/// Bytes that are no text, as an exception's may be, are replaced.
void StudyWorker::tell(const Json& message) { link_.send({.text = message.dump(-1, ' ', true, Json::error_handler_t::replace)}); }

int StudyWorker::run() {
  try {
    return obey();
  } catch (const std::exception& error) {
    if (heard_end_) throw;
    const auto* own = dynamic_cast<const Error*>(&error);
    std::string text = first_line(error.what());
    const int first = world_.rank - team_.rank();
    if (team_.size() > 1 && first > 0) text += concat("; rank r of this team is rank r + ", first, " of the job");
    tell_failure(static_cast<int>(own ? own->code() : ErrorCode::kFailed), text);
    if (!own || own->code() != ErrorCode::kEnvironment || world_.rank == 0) throw;
    const std::string cause = last_word();
    fail(ErrorCode::kEnvironment, cause.empty() ? text : cause);
  }
}

void StudyWorker::tell_failure(int code, const std::string& text) {
  try {
    tell({{"is", "failed"}, {"code", code}, {"error", text}});
  } catch (const Error&) {
    // Rank 0 is gone, which may be what is being told.
  }
}

/// A rank that loses another knows less than rank 0, which sees who is gone: what that one says at the end, or that it is gone itself; ""
/// where it says nothing.
std::string StudyWorker::last_word() {
  const auto start = Clock::now();
  try {
    for (double left = kLastWordSeconds; left > 0; left = kLastWordSeconds - seconds_since(start)) {
      const Json message = next_message(left);
      if (!message.is_null() && message.value("do", "") == "end" && !message.at("error").get<std::string>().empty())
        return concat("the study was ended: ", message.at("error").get<std::string>());
    }
    return "";
  } catch (const Error& error) {
    return concat(error.what(), "; the same command goes on with the study");
  }
}

int StudyWorker::obey() {
  for (;;) {
    const Json message = next_message(kForever);
    if (message.is_null()) continue;
    const std::string what = message.value("do", "");
    if (what == "phase") {
      join_phase(message.at("team").get<int>());
      if (team_.rank() == 0 && in_team_) lead();
      else if (in_team_) follow();
    } else if (what == "end") {
      heard_end_ = true;
      const int code = message.at("code").get<int>();
      const std::string error = message.at("error").get<std::string>();
      tell({{"is", "bye"}});
      if (!error.empty() && world_.rank != 0) fail(ErrorCode::kEnvironment, "the study was ended: ", error);
      return code;
    } else if (what != "bound") {  // One that came after its trial had ended.
      fail(ErrorCode::kFailed, "rank 0 said ", quote_text(what), ", which is not understood");
    }
  }
}

void StudyWorker::join_phase(int team_size) {
  runner_.reset();
  asks_stop_ = false;
  team_ = Group();
  const int first = world_.rank / team_size * team_size;
  in_team_ = first + team_size <= world_.size;
  if (team_size > 1) {
    if (!job_) job_ = Group::create(world_, {.backend = options_.backend, .timeout_seconds = options_.timeout});
    std::vector<int> ranks;
    for (int rank = first; rank < first + team_size; ++rank) ranks.push_back(rank);
    if (in_team_) team_ = job_->split(ranks, concat("team of rank ", first));
  }
  if (in_team_) runner_ = make_runner_(team_, [this] { return stop_wished(); });
}

std::string StudyWorker::tell_team(const std::string& text) {
  return team_.size() > 1 ? team_.all_gather_text(text, "orders of the study").front() : text;
}

/// The first rank of a team: until a message comes that is not about trials; that one is left for obey().
void StudyWorker::lead() {
  tell({{"is", "ready"}, {"team", team_.size()}});
  for (;;) {
    const Json message = next_message(team_.size() > 1 ? options_.timeout / 3 : kForever);
    if (message.is_null()) {
      tell_team(kWait);
      continue;
    }
    const std::string what = message.value("do", "");
    if (what == "run") {
      run_trial(message);
    } else if (what != "bound") {
      pending_ = message.dump();  // First: where the team has lost a rank, this may say why.
      tell_team(kLeave);
      return;
    }
  }
}

void StudyWorker::follow() {
  for (;;) {
    const std::string text = tell_team("");
    if (text == kLeave) return;
    if (text == kWait) continue;
    run_order(study::order_from_json(parse_strict_ordered_json(text, {.path = "an order"}), "an order"), {});
  }
}

study::TrialOutcome StudyWorker::run_order(const study::TrialOrder& order, const study::TrialWatch& watch) {
  study::TrialOrder here = order;
  // On another host the study's folder may not be there: such trials start over after a kill.
  if (!std::filesystem::is_directory(std::filesystem::path(order.snapshot).parent_path())) here.snapshot.clear();
  return runner_->run(here, watch);
}

void StudyWorker::run_trial(const Json& message) {
  const study::TrialOrder order = study::order_from_json(message.at("order"), "an order");
  bound_ = study::bound_from_json(message.at("bound"), "an order");
  own_ = rule_.none_reached();
  trial_ = {.id = order.id, .parameters = order.parameters};
  running_ = true;
  stopped_short_ = false;
  said_at_ = looked_at_ = Clock::now();
  tell_team(to_json(order).dump());
  const study::TrialOutcome outcome = run_order(order, {.measured = [this](const study::Measurement& one) { return measured(one); }});
  running_ = false;
  const bool unneeded = bound_.stop_at == 0;
  const bool is_short =
      outcome.status == study::TrialStatus::kIncomplete || (outcome.status == study::TrialStatus::kCensored && stopped_short_);
  if (is_short && !unneeded) {
    // One rank's wish ends the team's trial; this one may not have been asked yet.
    const bool wished_by_other = team_.size() > 1 && outcome.status == study::TrialStatus::kIncomplete;
    if (!stop_requested() && !pending_ && !wished_by_other)
      fail(ErrorCode::kFailed, "trial ", order.id, " of batch size ", order.batch_size, " ended by itself");
    tell({{"is", "interrupted"}});
    return;
  }
  trial_.status = outcome.status;
  trial_.steps = outcome.steps;
  trial_.seconds = outcome.seconds_before + outcome.seconds * team_.size();
  tell({{"is", "ended"}, {"trial", to_json(trial_)}});
  trial_ = {};
}

int64_t StudyWorker::measured(const study::Measurement& measurement) {
  trial_.measurements.push_back(measurement);
  rule_.note(measurement, own_);
  look_at_link();
  if (seconds_since(said_at_) >= kSaySeconds) {
    said_at_ = Clock::now();
    tell({{"is", "at"}, {"step", measurement.step}});
  }
  const int64_t wanted = rule_.wanted(bound_, own_);
  // A runner that asks after each step ends there, and saves the trial; stopped here it would not.
  if (wanted <= measurement.step || asks_stop_ || (!stop_requested() && !pending_)) return wanted;
  stopped_short_ = true;
  return 0;
}

bool StudyWorker::stop_wished() {
  asks_stop_ = true;
  if (stop_requested()) return true;
  if (!running_) return false;  // Not the first of its team: that one hears what is to be done.
  if (seconds_since(looked_at_) >= kLookSeconds) look_at_link();
  return pending_ || bound_.stop_at == 0;
}

void StudyWorker::look_at_link() {
  looked_at_ = Clock::now();
  while (!pending_) {
    std::optional<PeerMessage> heard = link_.receive(0);
    if (!heard) return;
    const Json message = parse_strict_ordered_json(heard->text, {.path = link_.server_name()});
    // A trial ends before the coordinator gives out another: a bound that comes now is this one's.
    if (message.value("do", "") == "bound") bound_ = study::bound_from_json(message.at("bound"), "a bound");
    else pending_ = std::move(heard->text);
  }
}

}  // namespace cohort
