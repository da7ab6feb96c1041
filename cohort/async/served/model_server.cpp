// A worker that is free gets the next ticket and the newest version; what it hands over is applied when it comes (async/async_mode.h), and
// counts as the part of its step that it is. A worker that is lost - killed, stopped, cut off - loses its ticket to whoever asks next; what
// it had half sent never arrives, since messages come whole or not at all. Cost of a ticket here: the model is copied once into a slot or a
// message, and what comes back is applied from where it is.
#include "cohort/async/served/model_server.h"

#include <algorithm>
#include <utility>

#include "cohort/async/packed_tensors.h"
#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

constexpr double kLeaveSeconds = 2, kComeSeconds = 10;

/// Why a peer is lost, without its name, which the line begins with.
std::string lost_words(const PeerEvent& event) {
  const std::string gone = event.name + " is gone";
  if (event.why == gone) return "its connection ended";
  return event.why.starts_with(gone + ": ") ? event.why.substr(gone.size() + 2) : event.why;
}

}  // namespace

ModelServer::ModelServer(ServerParts parts, MessageServer server)
    : parts_(std::move(parts)), server_(std::move(server)), num_numbers_(parts_.accounts.num_workers()) {}

void ModelServer::act(double timeout_seconds) {
  if (parts_.rounds) end_round_if_due();
  const std::optional<PeerEvent> event = server_.poll(std::min(timeout_seconds, std::max(0.0, parts_.gate.seconds_left(steady_seconds()))));
  if (!event || event->kind == PeerEvent::Kind::kJoined) return;  // One that joined says who it is.
  if (event->kind == PeerEvent::Kind::kLost) return event->came_again ? replace(event->peer, event->name) : lose(*event);
  try {
    hear(event->peer, event->name, event->message);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBadInput) throw;
    server_.dismiss(event->peer, error.what());
    lose(event->peer, error.what());
  }
}

void ModelServer::hear(PeerId peer, const std::string& name, const PeerMessage& message) {
  const Json said = parse_strict_ordered_json(message.text, {.path = name});
  const WorkerWord word = worker_word(said);
  if (word == WorkerWord::kJoins) return tell_what_to_join(peer);
  if (word == WorkerWord::kReady) return give_number(peer, name);
  if (word == WorkerWord::kHere) return welcome(peer, said);
  if (!worker_of_.contains(peer)) fail(ErrorCode::kBadInput, name, " did not say which worker it is");
  switch (word) {
    case WorkerWord::kFree:
      return give_work(peer, said, name);
    case WorkerWord::kDone:
      return take_push(peer, said, message.data, name);
    case WorkerWord::kFailed: {
      const std::string text = error_from(said);
      if (code_from(said) == ErrorCode::kFailed) fail(ErrorCode::kFailed, name, ": ", text);
      return lose(peer, "it failed: " + text);  // Of the training nothing is wrong.
    }
    case WorkerWord::kLeaving:
      leaving_.insert(peer);
      std::erase(waiting_, peer);
      return let_go_if_done(peer);
    default:
      fail(ErrorCode::kBadInput, name, " said what is not understood: ", printable(message.text.substr(0, 80)));
  }
}

void ModelServer::give_work(PeerId peer, const Json& said, const std::string& name) {
  if (works_.contains(peer) || std::find(waiting_.begin(), waiting_.end(), peer) != waiting_.end())
    fail(ErrorCode::kBadInput, name, " asked for more work than it may have at a time");
  Slot& slot = slots_.at(peer);
  slot.is_used = slot.memory && has_slot_from(said);
  waiting_.push_back(peer);
  serve_waiting();
}

void ModelServer::tell_what_to_join(PeerId peer) {
  if (!parts_.may_join)
    fail(ErrorCode::kBadInput, "this training takes no further workers; start it with ", name_settings("--listen HOST:PORT"));
  server_.send(peer, {.text = to_json(Joining{parts_.configuration, parts_.fingerprint, parts_.num_workers}).dump()});
}

/// Only now, so that one that finds that it has other data, or no memory for them, was never there.
void ModelServer::give_number(PeerId peer, const std::string& name) {
  if (!parts_.may_join) fail(ErrorCode::kBadInput, "this training takes no further workers");
  const int number = num_numbers_++;
  log_info(concat("worker ", number, " joins: ", name));
  promised_[peer] = number;
  parts_.accounts.of(number);  // A worker of this training from now on, also where it ends before the first push.
  server_.send(peer, {.text = to_json(Numbered{number}).dump()});
}

void ModelServer::welcome(PeerId peer, const Json& said) {
  const Json worker = said.value("worker", Json()), configuration = said.value("configuration", Json());
  if (!worker.is_number_unsigned() || worker.get<uint64_t>() >= static_cast<uint64_t>(num_numbers_))
    fail(ErrorCode::kBadInput, "there are the workers 0 to ", num_numbers_ - 1);
  const int number = worker.get<int>();
  have_come_.insert(number);
  if (!configuration.is_string() || configuration.get<std::string>() != parts_.configuration)
    fail(ErrorCode::kBadInput, "worker ", number,
         " was started with another configuration; start all ranks with the same options and config.toml");
  for (const auto& [other, its] : std::map<PeerId, int>(worker_of_))
    if (its == number) server_.dismiss(other, "it came again"), replace(other, "");
  std::erase_if(returning_, [&](const auto& each) { return each.second == number; });
  if (lost_.erase(number) > 0) log_info(concat("worker ", number, " is back"));
  worker_of_[peer] = number;
  slots_[peer].memory = WorkerSlot::make(parts_.mode.served(), parts_.mode.empty_handed_over());
  server_.send(peer, {.text = to_json(Welcome{slots_[peer].memory.address()}).dump()});
}

/// A worker that comes again before its old connection was seen to end. Nothing has died, but what it had in hand it has not any more.
void ModelServer::replace(PeerId peer, const std::string& name) {
  const std::optional<Gone> gone = forget(peer);
  if (!gone) return;
  returning_[name] = gone->worker;
  log_warning(concat("worker ", gone->worker, " comes again by another connection after ", parts_.accounts.pushes_text(gone->worker),
                     gone->had_ticket ? "; its ticket goes to another" : ""));
  serve_waiting();
}

void ModelServer::take_push(PeerId peer, const Json& said, const std::string& data, const std::string& where) {
  const WorkDone done = work_done_from(said, where);
  const auto found = works_.find(peer);
  if (found == works_.end() || found->second.ticket.step != done.step || found->second.ticket.share != done.share)
    fail(ErrorCode::kBadInput, where, " handed over share ", done.share, " of step ", done.step + 1, ", which it does not have");
  Work work = found->second;
  const Slot& slot = slots_.at(peer);
  std::vector<at::Tensor> tensors = handed_over(slot.is_used ? &slot.memory : nullptr, parts_.mode.empty_handed_over(), data, done.missing,
                                                parts_.mode.num_optional(), where);
  const int64_t num_bytes = packed_bytes(tensors);
  work.tensors = std::move(tensors);
  work.loss = done.loss;
  works_.erase(found);

  const int worker = worker_of_.at(peer);
  parts_.accounts.spent(worker, {.computing_seconds = done.computing_seconds,
                                 .waiting_seconds = done.waiting_seconds,
                                 .moving_seconds = done.moving_seconds,
                                 .pushing_seconds = done.pushing_seconds});
  parts_.accounts.moved(0, num_bytes);
  Pushed pushed{peer, worker, std::move(work), done.computing_seconds};
  if (parts_.rounds) gather_round(std::move(pushed));
  else if (parts_.most_ahead == 0) gather(pushed);
  else apply(std::move(pushed));
  serve_waiting();
  let_go_if_done(peer);
}

/// With stale:0 the pushes of a step are applied together, in the order of their shares, so that all are computed on the version with which
/// it began, whenever they were asked for.
void ModelServer::gather(const Pushed& pushed) {
  gathered_.push_back(pushed);
  for (at::Tensor& tensor : gathered_.back().work.tensors)
    if (tensor.defined()) tensor = tensor.clone();  // A slot may be written again before the step is whole.
  int64_t num_samples = 0;
  for (const Pushed& one : gathered_) num_samples += one.work.ticket.num_samples();
  if (num_samples < pushed.work.ticket.global_samples) return;
  std::sort(gathered_.begin(), gathered_.end(), [](const Pushed& a, const Pushed& b) { return a.work.ticket.share < b.work.ticket.share; });
  for (const Pushed& one : std::exchange(gathered_, {})) apply(one);
}

bool ModelServer::has_pushed(int worker) const {
  return parts_.rounds && std::any_of(gathered_.begin(), gathered_.end(), [&](const Pushed& one) { return one.worker == worker; });
}

/// Who is here, has nothing handed over and has work or will get some, or may yet come.
bool ModelServer::others_come() const {
  const bool has_tickets = parts_.tickets.has_next(parts_.most_ahead);
  for (const auto& [peer, worker] : worker_of_) {
    if (has_pushed(worker)) continue;
    const bool waits = std::find(waiting_.begin(), waiting_.end(), peer) != waiting_.end();
    if (!waits || has_tickets) return true;
  }
  return others_may_come();
}

void ModelServer::gather_round(Pushed pushed) {
  for (at::Tensor& tensor : pushed.work.tensors) tensor = tensor.clone();  // Out of a slot, which may go with its worker.
  gathered_.push_back(std::move(pushed));
  parts_.gate.add(steady_seconds());
  end_round_if_due();
}

/// The exchange of a quorum, as one push of all its samples: an evaluation sees all of it or nothing.
void ModelServer::end_round_if_due() {
  if (!parts_.gate.opens(steady_seconds(), others_come())) return;
  const double began = steady_seconds();
  std::vector<Pushed> round = std::exchange(gathered_, {});
  parts_.gate.clear();
  const auto place = [](const Pushed& one) { return std::pair(one.work.ticket.share, one.work.ticket.step); };
  std::sort(round.begin(), round.end(), [&](const Pushed& a, const Pushed& b) { return place(a) < place(b); });
  std::vector<Work*> works;
  for (Pushed& one : round) works.push_back(&one.work);
  const std::vector<PushOutcome> outcomes = parts_.rounds->merge(works);
  ServedPush push{as_one_push(works)};
  for (size_t i = 0; i < round.size(); ++i) {
    parts_.accounts.push(round[i].worker, round[i].work.ticket, outcomes[i]);
    parts_.tickets.finish(round[i].work.ticket);
    push.computing_seconds += round[i].computing_seconds;
  }
  push.push_seconds = steady_seconds() - began;
  parts_.applied(push);
  serve_waiting();
}

void ModelServer::apply(Pushed pushed) {
  const double began = steady_seconds();
  const PushOutcome outcome = parts_.mode.push(pushed.work, parts_.numbers());
  parts_.accounts.push(pushed.worker, pushed.work.ticket, outcome);
  parts_.tickets.finish(pushed.work.ticket);
  parts_.applied({{pushed.work.ticket, pushed.work.loss, outcome}, steady_seconds() - began, pushed.computing_seconds});
}

/// What the peer had in hand goes to another. None for one that is no worker, or not any more.
std::optional<ModelServer::Gone> ModelServer::forget(PeerId peer) {
  const auto found = worker_of_.find(peer);
  if (found == worker_of_.end()) return std::nullopt;
  Gone gone{.worker = found->second};
  worker_of_.erase(found);
  slots_.erase(peer);
  std::erase(waiting_, peer);
  if (const auto in_hand = works_.find(peer); in_hand != works_.end()) {
    parts_.tickets.give_back(in_hand->second.ticket);  // What it had handed over before stays.
    gone.had_ticket = true;
    ++parts_.accounts.of(gone.worker).lost;
    works_.erase(in_hand);
  }
  leaving_.erase(peer);
  return gone;
}

void ModelServer::lose(PeerId peer, const std::string& why) {
  if (const std::optional<Gone> gone = forget(peer)) tell_lost(*gone, why);
}

void ModelServer::lose(const PeerEvent& event) {
  if (const auto promised = promised_.find(event.peer); promised != promised_.end()) {
    const int worker = promised->second;
    promised_.erase(promised);
    if (!have_come_.contains(worker)) tell_lost({.worker = worker}, concat("it never came: ", lost_words(event)));
    return;
  }
  const auto returning = returning_.find(event.name);
  if (returning == returning_.end() || worker_of_.contains(event.peer)) return lose(event.peer, lost_words(event));
  const int worker = returning->second;
  returning_.erase(returning);
  tell_lost({.worker = worker}, "it came again, and ended before it said who it is");
}

void ModelServer::tell_lost(const Gone& gone, const std::string& why) {
  lost_.insert(gone.worker);
  ++parts_.accounts.of(gone.worker).deaths;
  log_warning(concat("worker ", gone.worker, " is lost after ", parts_.accounts.pushes_text(gone.worker), ": ", why,
                     gone.had_ticket ? "; its ticket goes to another" : "", "; the training goes on with ", num_workers_here()));
  serve_waiting();
}

/// One that said that it leaves does first what was on its way to it when it said so.
void ModelServer::let_go_if_done(PeerId peer) {
  if (!leaving_.contains(peer) || works_.contains(peer)) return;
  const int worker = forget(peer).value().worker;
  ++parts_.accounts.of(worker).left;
  lost_.insert(worker);
  log_info(concat("worker ", worker, " has left after ", parts_.accounts.pushes_text(worker), "; the training goes on with ",
                  num_workers_here()));
  server_.send(peer, {.text = end_json("").dump()});
  server_.dismiss(peer, "goodbye");
  serve_waiting();
}

std::string ModelServer::num_workers_here() const { return concat(worker_of_.size(), worker_of_.size() == 1 ? " worker" : " workers"); }

void ModelServer::serve_waiting() {
  // Who waits for an exchange that its push will be in gets what comes of it.
  const auto next = [&] {
    return std::find_if(waiting_.begin(), waiting_.end(), [&](PeerId peer) { return !has_pushed(worker_of_.at(peer)); });
  };
  for (auto found = next(); !holds_ && found != waiting_.end(); found = next()) {
    const PeerId peer = *found;
    const std::optional<Ticket> ticket = parts_.tickets.take(worker_of_.at(peer), parts_.most_ahead);
    if (!ticket) return;
    waiting_.erase(found);
    send_work(peer, *ticket);
  }
}

void ModelServer::send_work(PeerId peer, const Ticket& ticket) {
  Work work{.ticket = ticket};
  parts_.mode.pull(work);
  const Slot& slot = slots_.at(peer);
  PeerMessage message{.text = to_json(WorkOrder{ticket.step, ticket.share, parts_.numbers().learning_rate}).dump()};
  const std::vector<at::Tensor> served = parts_.mode.served();
  if (slot.is_used) copy_tensors(slot.memory.down(), served);
  else message.data = packed_text(served);
  parts_.accounts.moved(packed_bytes(served), 0);
  works_.emplace(peer, std::move(work));
  server_.send(peer, std::move(message));  // One that is lost is told of by poll().
}

bool ModelServer::others_may_come() const {
  for (int worker = 0; worker < parts_.num_workers; ++worker)
    if (!have_come_.contains(worker) && parts_.may_come(worker)) return true;
  return false;
}

/// Ranks that were slow to start come when all is over, and hear so too.
void ModelServer::end(const std::string& why) {
  const auto tell = [&](PeerId peer) { server_.send(peer, {.text = end_json(why).dump()}); };
  for (const auto& [peer, worker] : worker_of_) tell(peer);
  const double began = steady_seconds();
  const auto waits = [&] {
    const double waited = steady_seconds() - began;
    return (!worker_of_.empty() && waited < kLeaveSeconds) || (why.empty() && waited < kComeSeconds && others_may_come());
  };
  while (waits()) {
    const std::optional<PeerEvent> event = server_.poll(0.05);
    if (!event) continue;
    if (event->kind == PeerEvent::Kind::kLost) worker_of_.erase(event->peer);
    if (event->kind != PeerEvent::Kind::kMessage || worker_of_.contains(event->peer)) continue;
    try {
      const Json said = parse_strict_ordered_json(event->message.text, {.path = event->name});
      const WorkerWord word = worker_word(said);
      if (word != WorkerWord::kJoins && word != WorkerWord::kReady) welcome(event->peer, said);
      tell(event->peer);
    } catch (const Error& error) {
      server_.dismiss(event->peer, error.what());
    }
  }
  for (int worker = 0; worker < parts_.num_workers && why.empty(); ++worker)
    if (!have_come_.contains(worker)) log_warning(concat("worker ", worker, " never came: the others did its part"));
}

}  // namespace cohort
