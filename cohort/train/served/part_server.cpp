// Rank 0 hands out tickets, decides in which order pushes are applied, and tells the other servers all of it over one connection each, so
// that every server does the same in the same order (state machine replication: Schneider 1990, section 2, with rank 0 for the order) and
// has, at each order, its part of one version:
//
//   rank 0 -> server   serve N: worker w is to get what you have now      server -> w        its tensors
//   w -> server        what came of N, its tensors                        server -> rank 0   N is here
//   rank 0 -> server   apply N, where all servers have it, or forget N, where the worker is lost before
//   rank 0 -> server   show: a copy of what you have now, for evaluation and checkpoints
//
// So a push is applied by all servers or by none, whenever its worker dies. Cost of a ticket beside its bytes: for each further server five
// small messages, none of which a worker waits for but that which brings its tensors. Bytes: a worker sends and takes as many as from one
// server; a host of one of H servers with as many workers carries 2 (H - 1) / H^2 of what all workers move, where the host of one server
// carries (H - 1) / H of it: half with four hosts, the same with two.
#include "cohort/train/served/part_server.h"

#include <limits>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/train/async/packed_tensors.h"

namespace cohort {
namespace {

constexpr double kLookSeconds = 0.05;

}  // namespace

std::vector<at::Tensor> tensors_of(const std::vector<at::Tensor>& weights, const std::vector<FlatPiece>& pieces) {
  std::vector<at::Tensor> all = weights;
  for (const FlatPiece& piece : pieces) all.push_back(piece.values);
  return all;
}

PartServer::PartServer(GradientServer& model, MessageListener listener, MessageClient to_first, const PartServerOptions& options)
    : model_(model), listener_(std::move(listener)), to_first_(std::move(to_first)), options_(options), thread_([this] { serve(); }) {}

PartServer::~PartServer() {
  wants_end_ = true;
  join();
}

std::exception_ptr PartServer::join() {
  if (thread_.joinable()) thread_.join();
  return failure_;
}

void PartServer::serve() {
  try {
    server_.emplace(std::move(*listener_), options_.limits);
    while (!is_over_ && !wants_end_)
      if (const std::optional<PeerEvent> event = server_->poll(kLookSeconds)) hear(*event);
  } catch (const std::exception& error) {
    failure_ = std::current_exception();
    try {
      const auto* const own = dynamic_cast<const Error*>(&error);
      const auto code = static_cast<int>(own ? own->code() : ErrorCode::kEnvironment);
      if (to_first_.is_connected())
        to_first_.send({.text = Json{{"is", "failed"}, {"code", code}, {"error", first_line(error.what())}}.dump()});
    } catch (const Error&) {
      // Rank 0 is gone, which may be what failed.
    }
  }
  server_.reset();  // Who is connected sees it.
}

void PartServer::hear(const PeerEvent& event) {
  if (event.kind == PeerEvent::Kind::kJoined) return;
  if (event.kind == PeerEvent::Kind::kLost) {
    if (event.peer == first_) fail(ErrorCode::kEnvironment, "it heard nothing from rank 0 any more: ", event.why);
    if (const auto its = worker_of_.find(event.peer); its != worker_of_.end()) {
      if (const auto known = workers_.find(its->second); known != workers_.end() && known->second.peer == event.peer) workers_.erase(known);
      worker_of_.erase(its);
    }
    return;
  }
  if (event.peer == first_) return obey(part_order_from(parse_strict_ordered_json(event.message.text, {.path = event.name}), event.name));
  try {
    const Json said = parse_strict_ordered_json(event.message.text, {.path = event.name});
    const std::string what = said.is_object() ? said.value("is", "") : "";
    const auto worker = worker_of_.find(event.peer);
    if (what == "first" && !first_) return take_over(event.peer, said.value("state", Json()), event.message.data, event.name);
    if (what == "here") return welcome(event.peer, said, event.name);
    if (worker == worker_of_.end()) fail(ErrorCode::kBadInput, event.name, " did not say which worker it is");
    Served& served = workers_.at(worker->second);
    if (what == "free") served.is_used = served.slot && said.value("slot", Json()) == true;
    else if (what == "part") take_push(worker->second, part_of_push_from(said, event.name), event.message.data, event.name);
    else fail(ErrorCode::kBadInput, event.name, " said what is not understood: ", printable(event.message.text.substr(0, 80)));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBadInput) throw;
    server_->dismiss(event.peer, error.what());
  }
}

/// Only then is rank 0 in its loop, and lets this thread in.
void PartServer::take_over(PeerId peer, const Json& state, const std::string& data, const std::string& where) {
  first_ = peer;
  unpack(data, tensors_of(model_.served(), model_.loaded_pieces(state, where)));
  model_.loaded(state);
  to_first_.connect(options_.timeout_seconds);
  to_first_.send({.text = Json{{"is", "serves"}, {"server", options_.server}}.dump()});
}

void PartServer::obey(const PartOrder& order) {
  switch (order.what) {
    case PartOrder::What::kServe:
      return hand_out(order);
    case PartOrder::What::kApply:
      return apply(order);
    case PartOrder::What::kForget:
      in_hand_.erase(order.order);
      return;
    case PartOrder::What::kShow:
      return show(order.order);
    case PartOrder::What::kEnd:
      is_over_ = true;
  }
}

void PartServer::hand_out(const PartOrder& order) {
  if (order.global_samples < 1 || order.num_samples < 1) fail(ErrorCode::kFailed, "rank 0 handed out a ticket of no samples");
  Work work{.ticket = {.positions = {0, order.num_samples}, .global_samples = order.global_samples}, .worker = order.worker};
  const StepNumbers numbers{order.learning_rate, order.clip_norm};
  model_.pull(work, numbers);
  const auto found = workers_.find(order.worker);
  if (found != workers_.end()) {
    Served& served = found->second;
    PeerMessage message{.text = to_json(PartOfVersion{order.order, served.is_used}).dump()};
    if (served.is_used) copy_tensors(served.slot.down(), model_.served());
    else message.data = packed_text(model_.served());
    server_->send(served.peer, std::move(message));
  }
  model_.handed_out(work);
  in_hand_[order.order].work = std::move(work);
}

void PartServer::apply(const PartOrder& order) {
  const auto found = in_hand_.find(order.order);
  if (found == in_hand_.end() || !found->second.has_come)
    fail(ErrorCode::kFailed, "server ", options_.server, " of the model is to apply a push that it does not have: order ", order.order);
  found->second.work.squares = order.squares;
  model_.push(found->second.work, {order.learning_rate, order.clip_norm});
  in_hand_.erase(found);
}

void PartServer::show(int64_t number) {
  const std::vector<FlatPiece> pieces = model_.saved_pieces();
  to_first_.send({.text = Json{{"is", "shown"}, {"order", number}, {"state", model_.state()}}.dump(),
                  .data = packed_text(tensors_of(model_.served(), pieces))},
                 options_.timeout_seconds);
}

void PartServer::welcome(PeerId peer, const Json& said, const std::string& where) {
  const Json worker = said.value("worker", Json());
  if (!worker.is_number_unsigned() || worker.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int>::max()))
    fail(ErrorCode::kBadInput, where, " did not say which worker it is");
  const int number = worker.get<int>();
  if (const auto before = workers_.find(number); before != workers_.end() && before->second.peer != peer) {
    worker_of_.erase(before->second.peer);
    server_->dismiss(before->second.peer, "it came again");
  }
  Served served{.peer = peer};
  if (options_.gives_slots) served.slot = WorkerSlot::make(model_.served(), model_.empty_handed_over());
  server_->send(peer, {.text = to_json(Welcome{.slot = served.slot.address()}).dump()});
  workers_[number] = std::move(served);
  worker_of_[peer] = number;
}

void PartServer::take_push(int worker, const PartOfPush& part, const std::string& data, const std::string& where) {
  const auto found = in_hand_.find(part.order);
  if (found == in_hand_.end()) return;  // Its ticket was given to another meanwhile.
  InHand& in_hand = found->second;
  if (in_hand.work.worker != worker || in_hand.has_come) fail(ErrorCode::kBadInput, where, " handed over what it does not have in hand");
  const Served& served = workers_.at(worker);
  if (part.in_slot && !served.is_used) fail(ErrorCode::kBadInput, where, " wrote into memory that the two do not share");
  std::vector<at::Tensor> tensors =
      handed_over(part.in_slot ? &served.slot : nullptr, model_.empty_handed_over(), data, part.missing, model_.num_optional(), where);
  if (part.in_slot && options_.keeps_pushes)
    for (at::Tensor& tensor : tensors)
      if (tensor.defined()) tensor = tensor.clone();
  tensors.insert(tensors.end(), in_hand.work.tensors.begin(), in_hand.work.tensors.end());
  in_hand.work.tensors = std::move(tensors);
  in_hand.has_come = true;
  to_first_.send({.text = Json{{"is", "has"}, {"order", part.order}}.dump()});
}

}  // namespace cohort
