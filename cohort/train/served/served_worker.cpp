// One ticket at a time: a version comes with the order, what came of it goes back, and the next order is asked for once it is handed over.
// With sync=async:overlap two orders are asked for at first, so that the second one's version comes, and the result before goes, while one
// is computed: libzmq's own thread carries both. The price is a push more that a version is late by, this worker's own. Nothing is kept
// from one ticket to the next but what compression left out, so a worker may die, or come back, at any time.
//
// Cost of a ticket: three small messages, and the model's bytes down and up: in a slot of shared memory (worker_slot.h) where the server is
// on this host, else with the messages, which are encrypted and copied some times more. Where several servers divide the model
// (part_server.h) each sends and gets its tensors, and two small messages more.
#include "cohort/train/served/served_worker.h"

#include <signal.h>

#include <chrono>
#include <optional>
#include <thread>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/train/async/packed_tensors.h"
#include "cohort/train/async/server_parts.h"
#include "cohort/train/served/served_words.h"

namespace cohort {

ServedWorker::ServedWorker(WorkerSide& side, TicketSource source, MessageClient link, ServedWorkerOptions options)
    : side_(side), source_(std::move(source)), options_(std::move(options)), first_{std::move(link), {}, pulled_from(0)} {}

std::vector<at::Tensor> ServedWorker::pulled_from(int server) const { return tensors_of_server(side_.pulled(), options_.servers, server); }

std::vector<at::Tensor> ServedWorker::handed_to(int server) const {
  return tensors_of_server(side_.empty_handed_over(), options_.servers, server);
}

/// Of the connection alone: what fails elsewhere is no reason to come in again.
template <typename Talk>
auto ServedWorker::over(Link& link, const Talk& talk) {
  try {
    return talk();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kEnvironment || link.client.was_dismissed()) throw;
    throw LostServer();
  }
}

void ServedWorker::come_in(double timeout_seconds) {
  others_.clear();
  first_.slot = {};
  first_.client.connect(timeout_seconds);
  first_.client.send({.text = hello().dump()});
  waits_since_ = steady_seconds();
}

Json ServedWorker::hello() const { return {{"is", "here"}, {"worker", options_.worker}, {"configuration", options_.hello}}; }

void ServedWorker::ask() {
  over(first_, [&] { first_.client.send({.text = Json{{"is", "free"}, {"slot", static_cast<bool>(first_.slot)}}.dump()}); });
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
    while (const std::optional<PeerMessage> message = first_.client.receive(0)) {
      const Json json = parse_strict_ordered_json(message->text, {.path = first_.client.server_name()});
      if (json.value("do", "") == "end") return json.at("error").get<std::string>();
    }
  } catch (const Error&) {
    // Nothing was said.
  }
  return std::nullopt;
}

/// With overlap nothing is shared where a part of the model travels: memory that both see has room for one ticket.
void ServedWorker::meet(const Welcome& welcome) {
  side_.share(welcome.weights);
  first_.pulled = pulled_from(0);
  const bool overlaps = options_.most_in_hand > 1;
  if (welcome.servers.empty() || !overlaps) first_.slot = WorkerSlot::find(welcome.slot, first_.pulled, handed_to(0));
  for (size_t i = 0; i < welcome.servers.size(); ++i) meet_server(welcome.servers[i], static_cast<int>(i + 1));
  if (leaves()) return;
  const int num_asked = first_.slot ? 1 : options_.most_in_hand;
  for (int i = 0; i < num_asked; ++i) ask();
}

/// Before rank 0 hears that this worker is free, so that what the server is told to send finds the connection.
void ServedWorker::meet_server(const ServerPlace& place, int server) {
  Link& link = others_.emplace_back(Link{options_.client_of(place, server), {}, pulled_from(server)});
  const auto answer = over(link, [&] {
    link.client.connect(kComeBackSeconds);
    link.client.send({.text = hello().dump()});
    return link.client.receive(options_.timeout_seconds);
  });
  if (!answer) throw LostServer();
  const std::string& where = link.client.server_name();
  link.slot =
      WorkerSlot::find(welcome_from(parse_strict_ordered_json(answer->text, {.path = where}), where).slot, link.pulled, handed_to(server));
  over(link, [&] { link.client.send({.text = Json{{"is", "free"}, {"slot", static_cast<bool>(link.slot)}}.dump()}); });
}

/// Its part of the version that an order is for.
void ServedWorker::take_part(Link& link, int64_t order) {
  const std::string& where = link.client.server_name();
  const double began = steady_seconds();
  for (;;) {
    const std::optional<PeerMessage> message = over(link, [&] { return link.client.receive(kLookSeconds); });
    if (!message) {
      if (options_.between_tickets) options_.between_tickets();
      if (steady_seconds() - began < options_.timeout_seconds) continue;
      fail(ErrorCode::kEnvironment, where, " sent nothing within ", options_.timeout_seconds, " s");
    }
    const PartOfVersion part = part_of_version_from(parse_strict_ordered_json(message->text, {.path = where}), where);
    if (part.order < order) continue;  // Of a ticket that it had before it came again.
    if (part.order > order)
      fail(ErrorCode::kFailed, where, " sent its part of order ", part.order, " where that of ", order, " comes next");
    if (part.in_slot) copy_tensors(link.pulled, link.slot.down());
    else unpack(message->data, link.pulled);
    return;
  }
}

/// What a message to that server carries: "" where it is in the slot.
std::string ServedWorker::pack_for(const Link& link, const std::vector<at::Tensor>& tensors, std::vector<size_t>& missing) const {
  for (size_t i = 0; i < tensors.size(); ++i)
    if (!tensors[i].defined()) missing.push_back(i);
  if (!link.slot) return packed_text(tensors);
  copy_tensors(link.slot.up(), tensors);
  return "";
}

std::optional<std::string> ServedWorker::obey() {
  if (options_.between_tickets) options_.between_tickets();
  leaves();
  const std::optional<PeerMessage> message = over(first_, [&] { return first_.client.receive(kLookSeconds); });
  if (!message) return std::nullopt;
  const std::string& where = first_.client.server_name();
  const Json json = parse_strict_ordered_json(message->text, {.path = where});
  const std::string what = json.value("do", "");
  if (what == "end") return json.at("error").get<std::string>();
  if (what == "meet") {
    meet(welcome_from(json, where));
    return std::nullopt;
  }
  if (what != "work") fail(ErrorCode::kFailed, where, " said ", quote_text(what), ", which is not understood");
  work(work_order_from(json, where), message->data);
  return std::nullopt;
}

/// Between two tickets. Those that are on their way to it are done all the same, so that none is lost: the server says when it may go.
bool ServedWorker::leaves() {
  if (said_leaving_ || !options_.leaves || !options_.leaves()) return said_leaving_;
  over(first_, [&] { first_.client.send({.text = Json{{"is", "leaving"}}.dump()}); });
  return said_leaving_ = true;
}

void ServedWorker::work(const WorkOrder& order, const std::string& data) {
  WorkDone done{.step = order.step, .share = order.share, .waiting_seconds = steady_seconds() - waits_since_};
  const double came = steady_seconds();
  if (order.dropped) side_.take_back();
  if (first_.slot) copy_tensors(first_.pulled, first_.slot.down());
  else unpack(data, first_.pulled);
  for (Link& link : others_) take_part(link, order.order);
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
  done.squares = result.squares;
  const auto tensors_for = [&](int server) { return tensors_of_server(result.tensors, options_.servers, server); };
  for (size_t i = 0; i < others_.size(); ++i) {
    Link& link = others_[i];
    PartOfPush part{.order = order.order, .in_slot = static_cast<bool>(link.slot)};
    std::string its = pack_for(link, tensors_for(static_cast<int>(i + 1)), part.missing);
    over(link, [&] { link.client.send({.text = to_json(part).dump(), .data = std::move(its)}, options_.timeout_seconds); });
  }
  std::string bytes = pack_for(first_, tensors_for(0), done.missing);
  const double copied = steady_seconds();
  done.pushing_seconds = copied - computed + send_seconds_;
  done.moving_seconds = began - came + done.pushing_seconds;
  over(first_, [&] { first_.client.send({.text = to_json(done).dump(), .data = std::move(bytes)}, options_.timeout_seconds); });
  send_seconds_ = steady_seconds() - copied;
  ++num_pushes_;
  if (options_.pushed) options_.pushed(order.step + 1);
  if (options_.between_tickets) options_.between_tickets();  // Before weights are asked for, which would grow old meanwhile.
  if (!leaves()) ask();
}

void ServedWorker::tell_failure(int code, const std::string& text) {
  try {
    first_.client.send(
        {.text = Json{{"is", "failed"}, {"code", code}, {"error", text}}.dump(-1, ' ', true, Json::error_handler_t::replace)});
  } catch (const Error&) {
    // The server is gone, which may be what is being told.
  }
}

}  // namespace cohort
