// Protocol: a worker connects and sends Hello; the server answers Welcome. It then repeats WorkRequest, WorkOrder (with the newest version)
// and WorkDone (a push, applied on arrival with the weight of its item, async/async_mode.h), until TrainingEnd. A process that is no worker
// yet sends JoinQuery and JoinReady first. served_messages.h has the messages.
//
// A lost worker - killed, suspended, disconnected - returns its work item to the queue; a half-sent message never arrives, since messages
// are delivered whole or not at all. Cost of an item here: the model is copied once into a slot or a message, and the push is applied from
// where it was received.
#include "cohort/async/served/model_server.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "cohort/async/packed_tensors.h"
#include "cohort/async/served/served_messages.h"
#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

constexpr double kLeaveSeconds = 2, kConnectSeconds = 10;

/// The reason of a disconnect without the peer's name, with which the log line already begins.
std::string disconnect_reason(const PeerEvent& event) {
  const std::string gone = event.name + " is gone";
  if (event.why == gone) return "its connection ended";
  return event.why.starts_with(gone + ": ") ? event.why.substr(gone.size() + 2) : event.why;
}

class ParameterServer : public ModelServer {
 public:
  ParameterServer(AsyncTraining& training, ModelServerOptions options, MessageServer server)
      : training_(training),
        mode_(*training.mode),
        options_(std::move(options)),
        server_(std::move(server)),
        num_worker_numbers_(training.statistics.num_workers()),
        gate_(std::max(1, training.sync.quorum), training.sync.grace_seconds) {}

  void poll(double timeout_seconds) override {
    if (training_.local_server) finish_round_if_due();
    const double grace_seconds = std::max(0.0, gate_.remaining_seconds(steady_seconds()));
    const std::optional<PeerEvent> event = server_.poll(std::min(timeout_seconds, grace_seconds));
    if (!event || event->kind == PeerEvent::Kind::kJoined) return;  // A new peer sends Hello next.
    if (event->kind == PeerEvent::Kind::kLost) return event->came_again ? on_reconnect(event->peer, event->name) : on_disconnect(*event);
    try {
      on_message(event->peer, event->name, event->message);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kBadInput) throw;
      server_.dismiss(event->peer, error.what());
      lose(event->peer, error.what());
    }
  }

  /// Ranks that were slow to start connect only now, and are told so too.
  void end(const std::string& why) override {
    const auto send_end = [&](PeerId peer) { server_.send(peer, {.text = encode(TrainingEnd{why})}); };
    for (const auto& [peer, worker] : workers_) send_end(peer);
    const double began = steady_seconds();
    const auto waits = [&] {
      const double waited = steady_seconds() - began;
      return (!workers_.empty() && waited < kLeaveSeconds) || (why.empty() && waited < kConnectSeconds && others_may_connect());
    };
    while (waits()) {
      const std::optional<PeerEvent> event = server_.poll(0.05);
      if (!event) continue;
      if (event->kind == PeerEvent::Kind::kLost) workers_.erase(event->peer);
      if (event->kind != PeerEvent::Kind::kMessage || workers_.contains(event->peer)) continue;
      try {
        const Json json = parse_strict_ordered_json(event->message.text, {.path = event->name});
        if (!is_message<JoinQuery>(json) && !is_message<JoinReady>(json))
          handle<Hello>({event->peer, event->name, json, event->message.data});
        send_end(event->peer);
      } catch (const Error& error) {
        server_.dismiss(event->peer, error.what());
      }
    }
    for (int worker = 0; worker < options_.num_workers && why.empty(); ++worker)
      if (!ever_connected_.contains(worker)) log_warning(concat("worker ", worker, " never came: the others did its part"));
  }

  void pause(bool on) override {
    is_paused_ = on;
    assign_work();
  }

 private:
  struct ReceivedPush {
    Assignment assignment;
    double computing_seconds = 0;
  };
  struct Released {
    int worker = 0;
    bool had_item = false;
  };
  /// A message and its sender.
  struct Received {
    PeerId peer = 0;
    const std::string& name;
    const Json& json;
    const std::string& data;
  };

  // ---- messages ----

  void on_message(PeerId peer, const std::string& name, const PeerMessage& message) {
    struct Entry {
      const char* type;
      void (ParameterServer::*handle)(const Received&);
      bool from_worker;  // Only after Hello.
    };
    static constexpr Entry kMessages[] = {{JoinQuery::kType, &ParameterServer::handle<JoinQuery>, false},
                                          {JoinReady::kType, &ParameterServer::handle<JoinReady>, false},
                                          {Hello::kType, &ParameterServer::handle<Hello>, false},
                                          {WorkRequest::kType, &ParameterServer::handle<WorkRequest>, true},
                                          {WorkDone::kType, &ParameterServer::handle<WorkDone>, true},
                                          {WorkerFailure::kType, &ParameterServer::handle<WorkerFailure>, true},
                                          {LeaveRequest::kType, &ParameterServer::handle<LeaveRequest>, true}};
    const Json json = parse_strict_ordered_json(message.text, {.path = name});
    const std::string type = message_type(json, "is");
    const auto* const entry =
        std::find_if(std::begin(kMessages), std::end(kMessages), [&](const Entry& each) { return type == each.type; });
    const bool is_known = entry != std::end(kMessages);
    if (!(is_known && !entry->from_worker) && !workers_.contains(peer)) fail(ErrorCode::kBadInput, name, " did not say which worker it is");
    if (!is_known) fail(ErrorCode::kBadInput, name, " sent an unknown message: ", printable(message.text.substr(0, 80)));
    (this->*entry->handle)({peer, name, json, message.data});
  }

  template <typename Message>
  void handle(const Received& received) {
    on(received, decode<Message>(received.json, received.name));
  }

  void on(const Received& received, const JoinQuery& /*query*/) {
    if (options_.fingerprint.empty())
      fail(ErrorCode::kBadInput, "this training takes no further workers; start it with ", name_settings("--listen HOST:PORT"));
    server_.send(received.peer, {.text = encode(JoinInfo{options_.configuration, options_.fingerprint, options_.num_workers})});
  }

  /// A process gets its number only now, so that one that turns out to have other data, or too little memory, never counts as a worker.
  void on(const Received& received, const JoinReady& /*ready*/) {
    if (options_.fingerprint.empty()) fail(ErrorCode::kBadInput, "this training takes no further workers");
    const int number = num_worker_numbers_++;
    log_info(concat("worker ", number, " joins: ", received.name));
    joining_[received.peer] = number;
    training_.statistics.worker(number);  // Counts from now on, even if it ends before its first push.
    server_.send(received.peer, {.text = encode(WorkerNumber{number})});
  }

  void on(const Received& received, const Hello& hello) {
    const int number = hello.worker;
    if (number >= num_worker_numbers_) fail(ErrorCode::kBadInput, "there are the workers 0 to ", num_worker_numbers_ - 1);
    ever_connected_.insert(number);
    if (hello.configuration != options_.configuration)
      fail(ErrorCode::kBadInput, "worker ", number,
           " was started with another configuration; start all ranks with the same options and config.toml");
    for (const auto& [other, worker] : std::map<PeerId, int>(workers_))
      if (worker == number) server_.dismiss(other, "it came again"), on_reconnect(other, "");
    std::erase_if(reconnecting_, [&](const auto& each) { return each.second == number; });
    if (lost_.erase(number) > 0) log_info(concat("worker ", number, " is back"));
    workers_[received.peer] = number;
    Slot& slot = slots_[received.peer];
    slot.memory = WorkerSlot::make(mode_.served_tensors(), mode_.empty_push());
    server_.send(received.peer, {.text = encode(Welcome{slot.memory.address()})});
  }

  void on(const Received& received, const WorkRequest& request) {
    if (assigned_.contains(received.peer) || std::find(idle_.begin(), idle_.end(), received.peer) != idle_.end())
      fail(ErrorCode::kBadInput, received.name, " asked for more work than it may have at a time");
    Slot& slot = slots_.at(received.peer);
    slot.is_used = slot.memory && request.has_slot;
    idle_.push_back(received.peer);
    assign_work();
  }

  void on(const Received& received, const WorkDone& done) {
    const auto found = assigned_.find(received.peer);
    if (found == assigned_.end() || found->second.item.step != done.step || found->second.item.share != done.share)
      fail(ErrorCode::kBadInput, received.name, " pushed share ", done.share, " of step ", done.step + 1, ", which it does not have");
    const int worker = workers_.at(received.peer);
    const Slot& slot = slots_.at(received.peer);
    ReceivedPush push{found->second, done.computing_seconds};
    push.assignment.tensors = receive_push(slot.is_used ? &slot.memory : nullptr, mode_.empty_push(), received.data, done.missing,
                                           mode_.num_optional(), received.name);
    push.assignment.loss = done.loss;
    assigned_.erase(found);
    training_.statistics.add_seconds(worker, {.computing_seconds = done.computing_seconds,
                                              .waiting_seconds = done.waiting_seconds,
                                              .moving_seconds = done.moving_seconds,
                                              .pushing_seconds = done.pushing_seconds});
    training_.statistics.add_bytes(0, packed_bytes(push.assignment.tensors));
    if (training_.local_server) add_to_round(std::move(push));
    else if (training_.staleness_bound() == 0) add_to_step(push);
    else apply(std::move(push));
    assign_work();
    release_if_finished(received.peer);
  }

  void on(const Received& received, const WorkerFailure& failure) {
    const std::string text = printable(failure.error);
    if (failure.code == static_cast<int>(ErrorCode::kFailed)) fail(ErrorCode::kFailed, received.name, ": ", text);
    lose(received.peer, "it failed: " + text);  // The training itself goes on.
  }

  void on(const Received& received, const LeaveRequest& /*request*/) {
    leaving_.insert(received.peer);
    std::erase(idle_, received.peer);
    release_if_finished(received.peer);
  }

  /// A worker reconnects before its old connection was seen to end. The worker is alive; its outstanding work is lost.
  void on_reconnect(PeerId peer, const std::string& name) {
    const std::optional<Released> released = release(peer);
    if (!released) return;
    reconnecting_[name] = released->worker;
    log_warning(concat("worker ", released->worker, " comes again by another connection after ",
                       training_.statistics.pushes_text(released->worker), released->had_item ? "; its work item goes to another" : ""));
    assign_work();
  }

  void on_disconnect(const PeerEvent& event) {
    if (const auto joining = joining_.extract(event.peer)) {
      const int worker = joining.mapped();
      if (!ever_connected_.contains(worker)) report_lost({.worker = worker}, concat("it never came: ", disconnect_reason(event)));
      return;
    }
    const auto found = reconnecting_.find(event.name);
    if (found == reconnecting_.end() || workers_.contains(event.peer)) return lose(event.peer, disconnect_reason(event));
    const int worker = found->second;
    reconnecting_.erase(found);
    report_lost({.worker = worker}, "it came again, and ended before it said who it is");
  }

  // ---- work and pushes ----

  void assign_work() {
    // A worker whose push is in the next exchange gets work on the result of that exchange.
    const auto next = [&] {
      return std::find_if(idle_.begin(), idle_.end(), [&](PeerId peer) { return !has_pending_push(workers_.at(peer)); });
    };
    for (auto found = next(); !is_paused_ && found != idle_.end(); found = next()) {
      const PeerId peer = *found;
      const std::optional<WorkItem> item = training_.queue.take(workers_.at(peer), training_.staleness_bound());
      if (!item) return;
      idle_.erase(found);
      send_work(peer, *item);
    }
  }

  void send_work(PeerId peer, const WorkItem& item) {
    Assignment assignment{.item = item, .worker = workers_.at(peer)};
    mode_.pull(assignment);
    const Slot& slot = slots_.at(peer);
    PeerMessage message{.text = encode(WorkOrder{item.step, item.share, training_.numbers().learning_rate})};
    const std::vector<at::Tensor> served = mode_.served_tensors();
    if (slot.is_used) copy_tensors(slot.memory.down(), served);
    else message.data = packed_text(served);
    training_.statistics.add_bytes(packed_bytes(served), 0);
    assigned_.emplace(peer, std::move(assignment));
    server_.send(peer, std::move(message));  // If the peer is lost, poll() reports it.
  }

  void apply(ReceivedPush push) {
    const double began = steady_seconds();
    const AppliedPush applied = apply_push(mode_, push.assignment, training_.numbers(), training_.statistics, training_.queue);
    options_.applied({applied, steady_seconds() - began, push.computing_seconds});
  }

  /// With stale:0 the pushes of a step are applied together in the order of their shares, so that all are computed on the version with
  /// which the step began, whenever their work was requested.
  void add_to_step(const ReceivedPush& push) {
    pending_.push_back(push);
    for (at::Tensor& tensor : pending_.back().assignment.tensors)
      if (tensor.defined()) tensor = tensor.clone();  // The slot may be overwritten before the step is complete.
    int64_t num_samples = 0;
    for (const ReceivedPush& each : pending_) num_samples += each.assignment.item.num_samples();
    if (num_samples < push.assignment.item.global_samples) return;
    std::sort(pending_.begin(), pending_.end(),
              [](const ReceivedPush& a, const ReceivedPush& b) { return a.assignment.item.share < b.assignment.item.share; });
    for (const ReceivedPush& each : std::exchange(pending_, {})) apply(each);
  }

  void add_to_round(ReceivedPush push) {
    for (at::Tensor& tensor : push.assignment.tensors) tensor = tensor.clone();  // The slot may go away with its worker.
    pending_.push_back(std::move(push));
    gate_.add(steady_seconds());
    finish_round_if_due();
  }

  /// The exchange of a quorum, as one push of all its samples: an evaluation sees all of it or nothing.
  void finish_round_if_due() {
    if (!gate_.is_open(steady_seconds(), others_pending())) return;
    const double began = steady_seconds();
    std::vector<ReceivedPush> round = std::exchange(pending_, {});
    gate_.clear();
    std::vector<Assignment*> pushes;
    for (ReceivedPush& each : round) pushes.push_back(&each.assignment);
    ServedPush push{merge_pushes(*training_.local_server, pushes, training_.statistics, training_.queue)};
    for (const ReceivedPush& each : round) push.computing_seconds += each.computing_seconds;
    push.push_seconds = steady_seconds() - began;
    options_.applied(push);
    assign_work();
  }

  bool has_pending_push(int worker) const {
    return training_.local_server &&
           std::any_of(pending_.begin(), pending_.end(), [&](const ReceivedPush& each) { return each.assignment.worker == worker; });
  }

  /// Whether a worker without a pending push has work or will get some, or may still connect.
  bool others_pending() const {
    const bool has_items = training_.queue.has_next(training_.staleness_bound());
    for (const auto& [peer, worker] : workers_) {
      if (has_pending_push(worker)) continue;
      const bool is_idle = std::find(idle_.begin(), idle_.end(), peer) != idle_.end();
      if (!is_idle || has_items) return true;
    }
    return others_may_connect();
  }

  bool others_may_connect() const {
    for (int worker = 0; worker < options_.num_workers; ++worker)
      if (!ever_connected_.contains(worker) && options_.may_connect(worker)) return true;
    return false;
  }

  // ---- workers that leave or are lost ----

  /// Returns the peer's outstanding work to the queue; none if it is no worker any more. Its earlier pushes stay.
  std::optional<Released> release(PeerId peer) {
    const auto found = workers_.find(peer);
    if (found == workers_.end()) return std::nullopt;
    Released released{.worker = found->second};
    workers_.erase(found);
    slots_.erase(peer);
    std::erase(idle_, peer);
    if (const auto assigned = assigned_.find(peer); assigned != assigned_.end()) {
      training_.queue.give_back(assigned->second.item);
      released.had_item = true;
      ++training_.statistics.worker(released.worker).lost;
      assigned_.erase(assigned);
    }
    leaving_.erase(peer);
    return released;
  }

  /// A worker that wants to leave finishes its outstanding work first.
  void release_if_finished(PeerId peer) {
    if (!leaving_.contains(peer) || assigned_.contains(peer)) return;
    const int worker = release(peer).value().worker;
    ++training_.statistics.worker(worker).left;
    lost_.insert(worker);
    log_info(concat("worker ", worker, " has left after ", training_.statistics.pushes_text(worker), "; the training goes on with ",
                    num_workers_text()));
    server_.send(peer, {.text = encode(TrainingEnd{})});
    server_.dismiss(peer, "goodbye");
    assign_work();
  }

  void lose(PeerId peer, const std::string& why) {
    if (const std::optional<Released> released = release(peer)) report_lost(*released, why);
  }

  void report_lost(const Released& lost, const std::string& why) {
    lost_.insert(lost.worker);
    ++training_.statistics.worker(lost.worker).deaths;
    log_warning(concat("worker ", lost.worker, " is lost after ", training_.statistics.pushes_text(lost.worker), ": ", why,
                       lost.had_item ? "; its work item goes to another" : "", "; the training goes on with ", num_workers_text()));
    assign_work();
  }

  std::string num_workers_text() const { return concat(workers_.size(), workers_.size() == 1 ? " worker" : " workers"); }

  AsyncTraining& training_;
  AsyncMode& mode_;
  ModelServerOptions options_;
  MessageServer server_;
  struct Slot {
    WorkerSlot memory;
    bool is_used = false;  // The worker could map it too.
  };
  std::map<PeerId, int> workers_;  // Connected workers.
  std::map<PeerId, Slot> slots_;
  std::map<PeerId, Assignment> assigned_;    // Outstanding work.
  std::vector<PeerId> idle_;                 // In the order in which they asked for work.
  std::vector<ReceivedPush> pending_;        // With stale:0, pushes of the unfinished step; with a quorum, those of the next exchange.
  std::set<int> ever_connected_;             // Workers.
  std::set<int> lost_;                       // Workers that were lost or have left.
  std::set<PeerId> leaving_;                 // Workers that leave once they have no outstanding work.
  std::map<std::string, int> reconnecting_;  // By name, workers whose new connection has not sent Hello yet.
  std::map<PeerId, int> joining_;            // Numbers of joining workers, by the connection over which they were given.
  int num_worker_numbers_;                   // Numbers given out.
  QuorumGate gate_;
  bool is_paused_ = false;
};

}  // namespace

std::unique_ptr<ModelServer> make_model_server(AsyncTraining& training, ModelServerOptions options, MessageServer server) {
  return std::make_unique<ParameterServer>(training, std::move(options), std::move(server));
}

}  // namespace cohort
