// A worker handles the coordinator's messages one after the other, and polls its connection while it trains: at each evaluation, and after
// steps every kPollSeconds. In a team only the first rank exchanges messages about trials; it shares its orders with the others by an
// all-gather of text, at least every third of the exchange timeout (an empty order), so that no collective times out while idle.

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
constexpr double kPollSeconds = 0.05, kReportSeconds = 1.0;
constexpr double kForever = 1e8;
constexpr double kCauseSeconds = 5;  ///< Longer than rank 0 waits to detect all lost ranks.
// Orders within a team, besides a TrialOrder: no work yet, and the end of the phase.
const char* const kWait = "";
const char* const kLeave = "leave";

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

/// Invalid UTF-8, as in messages of exceptions, is replaced.
void StudyWorker::send(const Json& message) { link_.send({.text = message.dump(-1, ' ', true, Json::error_handler_t::replace)}); }

int StudyWorker::run() {
  try {
    return handle_messages();
  } catch (const std::exception& error) {
    if (received_end_) throw;
    const auto* own = dynamic_cast<const Error*>(&error);
    std::string text = first_line(error.what());
    const int first = world_.rank - team_.rank();
    if (team_.size() > 1 && first > 0) text += concat("; rank r of this team is rank r + ", first, " of the job");
    report_failure(static_cast<int>(own ? own->code() : ErrorCode::kFailed), text);
    if (!own || own->code() != ErrorCode::kEnvironment || world_.rank == 0) throw;
    const std::string cause = wait_for_cause();
    fail(ErrorCode::kEnvironment, cause.empty() ? text : cause);
  }
}

void StudyWorker::report_failure(int code, const std::string& text) {
  try {
    send({{"is", "failed"}, {"code", code}, {"error", text}});
  } catch (const Error&) {
    // Rank 0 is gone, which may be the failure.
  }
}

/// Waits for the reason of a failed exchange: rank 0 knows which rank was lost, and reports it at the end, or is lost itself. "" where
/// there is no answer.
std::string StudyWorker::wait_for_cause() {
  const auto start = Clock::now();
  try {
    for (double left = kCauseSeconds; left > 0; left = kCauseSeconds - seconds_since(start)) {
      const Json message = next_message(left);
      if (!message.is_null() && message.value("do", "") == "end" && !message.at("error").get<std::string>().empty())
        return concat("the study was ended: ", message.at("error").get<std::string>());
    }
    return "";
  } catch (const Error& error) {
    return concat(error.what(), "; the same command goes on with the study");
  }
}

int StudyWorker::handle_messages() {
  for (;;) {
    const Json message = next_message(kForever);
    if (message.is_null()) continue;
    const std::string what = message.value("do", "");
    if (what == "phase") {
      join_phase(message.at("team").get<int>());
      if (team_.rank() == 0 && in_team_) run_as_leader();
      else if (in_team_) run_as_follower();
    } else if (what == "end") {
      received_end_ = true;
      const int code = message.at("code").get<int>();
      const std::string error = message.at("error").get<std::string>();
      send({{"is", "bye"}});
      if (!error.empty() && world_.rank != 0) fail(ErrorCode::kEnvironment, "the study was ended: ", error);
      return code;
    } else if (what != "bound") {  // A bound may arrive after its trial had ended.
      fail(ErrorCode::kFailed, "rank 0 said ", quote_text(what), ", which is not understood");
    }
  }
}

void StudyWorker::join_phase(int team_size) {
  runner_.reset();
  runner_polls_stop_ = false;
  team_ = Group();
  const int first = world_.rank / team_size * team_size;
  in_team_ = first + team_size <= world_.size;
  if (team_size > 1) {
    if (!job_) job_ = Group::create(world_, {.backend = options_.backend, .timeout_seconds = options_.timeout});
    std::vector<int> ranks;
    for (int rank = first; rank < first + team_size; ++rank) ranks.push_back(rank);
    if (in_team_) team_ = job_->split(ranks, concat("team of rank ", first));
  }
  if (in_team_) runner_ = make_runner_(team_, [this] { return should_stop(); });
}

std::string StudyWorker::share_order(const std::string& text) {
  return team_.size() > 1 ? team_.all_gather_text(text, "orders of the study").front() : text;
}

/// The first rank of a team, until a message arrives that is not about trials; handle_messages() handles that one.
void StudyWorker::run_as_leader() {
  send({{"is", "ready"}, {"team", team_.size()}});
  for (;;) {
    const Json message = next_message(team_.size() > 1 ? options_.timeout / 3 : kForever);
    if (message.is_null()) {
      share_order(kWait);
      continue;
    }
    const std::string what = message.value("do", "");
    if (what == "run") {
      run_trial(message);
    } else if (what != "bound") {
      pending_ = message.dump();  // Before the exchange, which fails where the team has lost a rank.
      share_order(kLeave);
      return;
    }
  }
}

void StudyWorker::run_as_follower() {
  for (;;) {
    const std::string text = share_order("");
    if (text == kLeave) return;
    if (text == kWait) continue;
    run_order(study::order_from_json(parse_strict_ordered_json(text, {.path = "an order"}), "an order"), {});
  }
}

study::TrialOutcome StudyWorker::run_order(const study::TrialOrder& order, const study::TrialWatch& watch) {
  study::TrialOrder here = order;
  // Another host may not have the study's folder; its trials start over after a kill.
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
  reported_at_ = polled_at_ = Clock::now();
  share_order(to_json(order).dump());
  const study::TrialOutcome outcome = run_order(order, {.measured = [this](const study::Measurement& one) { return measured(one); }});
  running_ = false;
  const bool unneeded = bound_.stop_at == 0;
  const bool is_short =
      outcome.status == study::TrialStatus::kIncomplete || (outcome.status == study::TrialStatus::kCensored && stopped_short_);
  if (is_short && !unneeded) {
    // Another rank of the team may have requested the stop.
    const bool stopped_by_other = team_.size() > 1 && outcome.status == study::TrialStatus::kIncomplete;
    if (!stop_requested() && !pending_ && !stopped_by_other)
      fail(ErrorCode::kFailed, "trial ", order.id, " of batch size ", order.batch_size, " ended by itself");
    send({{"is", "interrupted"}});
    return;
  }
  trial_.status = outcome.status;
  trial_.steps = outcome.steps;
  trial_.seconds = outcome.seconds_before + outcome.seconds * team_.size();
  send({{"is", "ended"}, {"trial", to_json(trial_)}});
  trial_ = {};
}

int64_t StudyWorker::measured(const study::Measurement& measurement) {
  trial_.measurements.push_back(measurement);
  rule_.note(measurement, own_);
  poll_link();
  if (seconds_since(reported_at_) >= kReportSeconds) {
    reported_at_ = Clock::now();
    send({{"is", "at"}, {"step", measurement.step}});
  }
  const int64_t wanted = rule_.step_limit(bound_, own_);
  // A runner that polls after each step stops there and saves the trial; stopped here it would not.
  if (wanted <= measurement.step || runner_polls_stop_ || (!stop_requested() && !pending_)) return wanted;
  stopped_short_ = true;
  return 0;
}

bool StudyWorker::should_stop() {
  runner_polls_stop_ = true;
  if (stop_requested()) return true;
  if (!running_) return false;  // Not the first rank of its team, which alone receives messages.
  if (seconds_since(polled_at_) >= kPollSeconds) poll_link();
  return pending_ || bound_.stop_at == 0;
}

void StudyWorker::poll_link() {
  polled_at_ = Clock::now();
  while (!pending_) {
    std::optional<PeerMessage> heard = link_.receive(0);
    if (!heard) return;
    const Json message = parse_strict_ordered_json(heard->text, {.path = link_.server_name()});
    // A trial ends before the coordinator hands out another, so this bound belongs to the running one.
    if (message.value("do", "") == "bound") bound_ = study::bound_from_json(message.at("bound"), "a bound");
    else pending_ = std::move(heard->text);
  }
}

}  // namespace cohort
