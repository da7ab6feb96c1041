// One ticket at a time: a version comes with the order, what came of it goes back, and the next order is asked for once it is handed over.
// Nothing is kept from one ticket to the next but what compression left out, so a worker may die, or come back, at any time.
//
// Cost of a ticket: three small messages, and the model's bytes down and up: in a slot of shared memory (packed_tensors.h) where the server
// is on this host, else with the messages, which are encrypted and copied some times more.
#include "cohort/async/served/served_worker.h"

#include <signal.h>

#include <chrono>
#include <optional>
#include <thread>

#include "cohort/async/packed_tensors.h"
#include "cohort/async/served/served_words.h"
#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"

namespace cohort {

ServedWorker::ServedWorker(WorkerSide& side, TicketSource source, MessageClient link, ServedWorkerOptions options)
    : side_(side), source_(std::move(source)), link_(std::move(link)), options_(std::move(options)) {}

/// Of the connection alone: what fails elsewhere is no reason to come in again.
template <typename Talk>
auto ServedWorker::over_link(const Talk& talk) {
  try {
    return talk();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kEnvironment || link_.was_dismissed()) throw;
    throw LostServer();
  }
}

void ServedWorker::come_in(double timeout_seconds) {
  slot_ = {};
  link_.connect(timeout_seconds);
  link_.send({.text = here_json(options_.worker, options_.hello).dump()});
  waits_since_ = steady_seconds();
}

void ServedWorker::ask() {
  over_link([&] { link_.send({.text = free_json(static_cast<bool>(slot_)).dump()}); });
  waits_since_ = steady_seconds();
}

std::string ServedWorker::run() {
  come_in(options_.timeout_seconds);
  for (;;) {
    try {
      if (const std::optional<std::string> end = obey()) return *end;
    } catch (const LostServer&) {
      if (const std::optional<std::string> end = last_word()) return *end;
      if (said_leaving_) return "";  // Nobody is left who could let it go.
      come_in(kComeBackSeconds);
      side_.begin_anew();
    } catch (const std::exception& error) {
      const auto* own = dynamic_cast<const Error*>(&error);
      // Only an Error says that it is the training that failed; what else goes wrong, as memory that is not there, is this worker's.
      tell_failure(static_cast<int>(own ? own->code() : ErrorCode::kEnvironment), first_line(error.what()));
      throw;
    }
  }
}

/// A training may have come to its end while this worker computed: what the server said before it left can still be read.
std::optional<std::string> ServedWorker::last_word() {
  try {
    while (const std::optional<PeerMessage> message = link_.receive(0)) {
      const Json json = parse_strict_ordered_json(message->text, {.path = link_.server_name()});
      if (server_word(json) == ServerWord::kEnd) return end_from(json, link_.server_name());
    }
  } catch (const Error&) {
    // Nothing was said.
  }
  return std::nullopt;
}

std::optional<std::string> ServedWorker::obey() {
  if (options_.between_tickets) options_.between_tickets();
  leaves();
  const std::optional<PeerMessage> message = over_link([&] { return link_.receive(kLookSeconds); });
  if (!message) return std::nullopt;
  const std::string& where = link_.server_name();
  const Json json = parse_strict_ordered_json(message->text, {.path = where});
  const ServerWord word = server_word(json);
  if (word == ServerWord::kEnd) return end_from(json, where);
  if (word == ServerWord::kMeet) {
    slot_ = WorkerSlot::find(welcome_from(json, where).slot, side_.pulled(), side_.empty_handed_over());
    if (!leaves()) ask();
    return std::nullopt;
  }
  if (word != ServerWord::kWork)
    fail(ErrorCode::kFailed, where, " said ", quote_text(text_of_server_word(json)), ", which is not understood");
  work(work_order_from(json, where), message->data);
  return std::nullopt;
}

/// Between two tickets. One that is on its way to it is done all the same, so that none is lost: the server says when it may go.
bool ServedWorker::leaves() {
  if (said_leaving_ || !options_.leaves || !options_.leaves()) return said_leaving_;
  over_link([&] { link_.send({.text = to_json(WorkerWord::kLeaving).dump()}); });
  return said_leaving_ = true;
}

void ServedWorker::work(const WorkOrder& order, const std::string& data) {
  WorkDone done{.step = order.step, .share = order.share, .waiting_seconds = steady_seconds() - waits_since_};
  const double came = steady_seconds();
  if (slot_) copy_tensors(side_.pulled(), slot_.down());
  else unpack(data, side_.pulled());
  if (num_pushes_ == 0 && options_.injection.pause_seconds > 0)
    std::this_thread::sleep_for(std::chrono::duration<double>(options_.injection.pause_seconds));
  if (num_pushes_ == options_.injection.kill_step) ::raise(SIGKILL);
  const double began = steady_seconds();
  const HandedOver result = source_(order);
  const double computing = steady_seconds() - began;
  if (options_.injection.slow_factor > 1)
    std::this_thread::sleep_for(std::chrono::duration<double>(computing * (options_.injection.slow_factor - 1)));
  const double computed = steady_seconds();
  done.computing_seconds = computed - began;
  done.loss = result.loss;
  for (size_t i = 0; i < result.tensors.size(); ++i)
    if (!result.tensors[i].defined()) done.missing.push_back(i);
  std::string bytes;
  if (slot_) copy_tensors(slot_.up(), result.tensors);
  else bytes = packed_text(result.tensors);
  const double copied = steady_seconds();
  done.pushing_seconds = copied - computed + send_seconds_;
  done.moving_seconds = began - came + done.pushing_seconds;
  over_link([&] { link_.send({.text = to_json(done).dump(), .data = std::move(bytes)}, options_.timeout_seconds); });
  send_seconds_ = steady_seconds() - copied;
  ++num_pushes_;
  if (options_.pushed) options_.pushed(order.step + 1);
  if (options_.between_tickets) options_.between_tickets();  // Before weights are asked for, which would grow old meanwhile.
  if (!leaves()) ask();
}

void ServedWorker::tell_failure(int code, const std::string& text) {
  try {
    link_.send({.text = failed_json(code, text).dump(-1, ' ', true, Json::error_handler_t::replace)});
  } catch (const Error&) {
    // The server is gone, which may be what is being told.
  }
}

TicketSource ticket_source(WorkerSide& side, const Tickets& tickets, TicketWork& work, const Job& job, int64_t total_steps) {
  return [&side, &tickets, &work, &job, total_steps](const WorkOrder& order) {
    return side.work({.tickets = tickets,
                      .step = order.step,
                      .share = order.share,
                      .numbers = {order.learning_rate, job.config.clip_norm},
                      .rate_at = [&](int64_t step) { return job.learning_rate.at(step, total_steps); },
                      .compute = [&](const Ticket& ticket, double rate) { return work.compute(ticket, rate); }});
  };
}

}  // namespace cohort
