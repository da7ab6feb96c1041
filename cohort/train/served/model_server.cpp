// A worker that is free gets the next ticket and the newest version; what it hands over is applied when it comes (async/async_mode.h), and
// counts as the part of its step that it is. A worker that is lost - killed, stopped, cut off - loses its ticket to whoever asks next; what
// it had half sent never arrives, since messages come whole or not at all. Cost of a ticket here: the model is copied once into a slot or a
// message, and what comes back is applied from where it is.
#include "cohort/train/served/model_server.h"

#include <algorithm>
#include <utility>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/log.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/train/async/packed_tensors.h"

namespace cohort {
namespace {

constexpr double kLeaveSeconds = 2, kComeSeconds = 10;

}  // namespace

ModelServer::ModelServer(ServerParts parts, MessageServer server)
    : parts_(std::move(parts)), server_(std::move(server)), num_numbers_(parts_.accounts.num_workers()) {}

void ModelServer::act(double timeout_seconds) {
  const std::optional<PeerEvent> event = server_.poll(timeout_seconds);
  if (!event || event->kind == PeerEvent::Kind::kJoined) return;  // One that joined says who it is.
  if (event->kind == PeerEvent::Kind::kLost) return lose(event->peer, event->why);
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
  const std::string what = said.is_object() ? said.value("is", "") : "";
  if (what == "joins") return tell_to_join(peer, name);
  if (what == "here") return welcome(peer, said);
  if (!worker_of_.contains(peer)) fail(ErrorCode::kBadInput, name, " did not say which worker it is");
  if (what == "free") {
    if (works_.contains(peer) || std::find(waiting_.begin(), waiting_.end(), peer) != waiting_.end())
      fail(ErrorCode::kBadInput, name, " asked for work twice");
    Slot& slot = slots_.at(peer);
    slot.is_used = slot.memory && said.value("slot", Json()) == true;
    waiting_.push_back(peer);
    serve_waiting();
  } else if (what == "done") {
    take_push(peer, said, message.data, name);
  } else if (what == "failed") {
    const Json error = said.value("error", Json());
    const std::string text = error.is_string() ? printable(error.get<std::string>()) : "";
    if (said.value("code", Json()) == static_cast<int>(ErrorCode::kFailed)) fail(ErrorCode::kFailed, name, ": ", text);
    lose(peer, "it failed: " + text);  // Of the training nothing is wrong.
  } else {
    fail(ErrorCode::kBadInput, name, " said what is not understood: ", printable(message.text.substr(0, 80)));
  }
}

void ModelServer::tell_to_join(PeerId peer, const std::string& name) {
  if (!parts_.may_join)
    fail(ErrorCode::kBadInput, "this training takes no further workers; start it with ", name_settings("--listen HOST:PORT"));
  const int number = num_numbers_++;
  log_info(concat("worker ", number, " joins: ", name));
  server_.send(peer, {.text = to_json(Joining{parts_.configuration, parts_.fingerprint, number, parts_.num_workers}).dump()});
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
  // One that comes again before its old connection was seen to end.
  for (const auto& [other, its] : std::map<PeerId, int>(worker_of_))
    if (its == number) server_.dismiss(other, "it came again"), lose(other, "it came again");
  if (lost_.erase(number) > 0) log_info(concat("worker ", number, " is back"));
  worker_of_[peer] = number;
  slots_[peer].memory = WorkerSlot::make(parts_.mode.served(), parts_.mode.empty_handed_over());
  server_.send(peer, {.text = to_json(Welcome{slots_[peer].memory.address()}).dump()});
}

void ModelServer::take_push(PeerId peer, const Json& said, const std::string& data, const std::string& where) {
  const auto found = works_.find(peer);
  const WorkDone done = work_done_from(said, where);
  if (found == works_.end() || found->second.ticket.step != done.step || found->second.ticket.share != done.share)
    fail(ErrorCode::kBadInput, where, " handed over share ", done.share, " of step ", done.step + 1, ", which it does not have");
  Work work = found->second;
  const Slot& slot = slots_.at(peer);
  std::vector<at::Tensor> tensors = slot.is_used ? slot.memory.up() : parts_.mode.empty_handed_over();
  for (const size_t at : done.missing) {
    if (at >= parts_.mode.num_optional())
      fail(ErrorCode::kBadInput, where, ": tensor ", at, " is missing, of ", tensors.size(), " of which the first ",
           parts_.mode.num_optional(), " may be");
    tensors[at] = at::Tensor();
  }
  if (!slot.is_used) unpack(data, tensors);
  const int64_t num_bytes = packed_bytes(tensors);
  tensors.insert(tensors.end(), work.tensors.begin(), work.tensors.end());
  work.tensors = std::move(tensors);
  work.loss = done.loss;
  works_.erase(found);

  const int worker = worker_of_.at(peer);
  AsyncRecord::Worker& account = parts_.accounts.of(worker);
  account.computing_seconds += done.computing_seconds;
  account.waiting_seconds += done.waiting_seconds;
  account.moving_seconds += done.moving_seconds;
  parts_.accounts.moved(0, num_bytes);
  const Pushed pushed{worker, std::move(work), done.computing_seconds};
  if (parts_.most_ahead == 0) gather(pushed);
  else apply(pushed);
  serve_waiting();
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

void ModelServer::apply(Pushed pushed) {
  const double began = steady_seconds();
  const PushOutcome outcome = parts_.mode.push(pushed.work, parts_.numbers());
  parts_.accounts.push(pushed.worker, pushed.work.ticket, outcome);
  if (outcome.dropped) return parts_.tickets.give_back(pushed.work.ticket);
  parts_.tickets.finish(pushed.work.ticket);
  parts_.applied({{pushed.work.ticket, pushed.work.loss, outcome}, steady_seconds() - began, pushed.computing_seconds});
}

void ModelServer::lose(PeerId peer, const std::string& why) {
  const auto found = worker_of_.find(peer);
  if (found == worker_of_.end()) return;
  const int worker = found->second;
  worker_of_.erase(found);
  slots_.erase(peer);
  std::erase(waiting_, peer);
  const auto in_hand = works_.find(peer);
  const int lost = in_hand == works_.end() ? 0 : 1;
  if (lost > 0) parts_.tickets.give_back(in_hand->second.ticket);  // What it had handed over before stays.
  works_.erase(peer);
  lost_.insert(worker);
  ++parts_.accounts.of(worker).deaths;
  parts_.accounts.of(worker).lost += lost;
  log_warning(concat("worker ", worker, " is lost after ", with_commas(parts_.accounts.of(worker).pushes), " pushes", ": ", why,
                     lost > 0 ? "; its ticket goes to another" : "", "; the training goes on with ", worker_of_.size(),
                     worker_of_.size() == 1 ? " worker" : " workers"));
  serve_waiting();
}

void ModelServer::hold(bool on) {
  holds_ = on;
  serve_waiting();
}

void ModelServer::serve_waiting() {
  while (!holds_ && !waiting_.empty()) {
    const PeerId peer = waiting_.front();
    const std::optional<Ticket> ticket = parts_.tickets.take(worker_of_.at(peer), parts_.most_ahead);
    if (!ticket) return;
    waiting_.erase(waiting_.begin());
    send_work(peer, *ticket);
  }
}

void ModelServer::send_work(PeerId peer, const Ticket& ticket) {
  Work work{.ticket = ticket};
  const StepNumbers numbers = parts_.numbers();
  parts_.mode.pull(work, numbers);
  PeerMessage message{.text = to_json(WorkOrder{ticket.step, ticket.share, numbers.learning_rate}).dump()};
  const std::vector<at::Tensor> served = parts_.mode.served();
  if (const Slot& slot = slots_.at(peer); slot.is_used) copy_tensors(slot.memory.down(), served);
  else message.data = packed_text(served);
  parts_.mode.handed_out(work);
  parts_.accounts.moved(packed_bytes(served), 0);
  works_[peer] = std::move(work);
  server_.send(peer, std::move(message));  // One that is lost is told of by poll().
}

bool ModelServer::others_may_come() const {
  for (int worker = 0; worker < parts_.num_workers; ++worker)
    if (!have_come_.contains(worker) && parts_.may_come(worker)) return true;
  return false;
}

/// Ranks that were slow to start come when all is over, and hear so too.
void ModelServer::end(const std::string& why) {
  const auto tell = [&](PeerId peer) { server_.send(peer, {.text = Json{{"do", "end"}, {"error", why}}.dump()}); };
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
      welcome(event->peer, parse_strict_ordered_json(event->message.text, {.path = event->name}));
      tell(event->peer);
    } catch (const Error& error) {
      server_.dismiss(event->peer, error.what());
    }
  }
  for (int worker = 0; worker < parts_.num_workers && why.empty(); ++worker)
    if (!have_come_.contains(worker)) log_warning(concat("worker ", worker, " never came: the others did its part"));
}

}  // namespace cohort
