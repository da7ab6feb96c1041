// Asynchronous workers under the virtual clock.
// 1. An idle worker takes a work item, or waits until it may have one, and gets the version of that moment.
// 2. Its push is computed then, in real time, and kept until it arrives in virtual time: after the server's link has served it, the latency
//    and bytes of the pull, its computing time, and the latency and bytes of the push.
// 3. A worker that dies takes its work along, wherever that was; the item goes to the next worker that asks. The worker returns, idle,
// after
//    the restart time.
// With a quorum an item is H steps of local training, and a push that has arrived waits for the exchange, which survives its worker's
// death; the worker's optimizer does not.
//
// So an outstanding item holds only its push, not a version of the weights: AsyncModel::bytes_in_flight().
#include "cohort/async/simulated/virtual_driver.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "cohort/async/packed_tensors.h"
#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/json_fields.h"
#include "cohort/parallel/local/fragments.h"

namespace cohort {
namespace {

class AsyncDriver : public VirtualDriver {
 public:
  AsyncDriver(VirtualContext context, std::optional<QuorumPolicy> quorum)
      : VirtualDriver(std::move(context)), quorum_(std::move(quorum)), workers_(static_cast<size_t>(context_.spec.workers)) {
    for (Worker& worker : workers_)
      if (quorum_) worker.trainer = std::make_unique<LocalWorker>(quorum_->module, quorum_->rule);
  }

  void begin() override {
    for (int worker = 0; worker < context_.spec.workers; ++worker) start_worker(worker);
  }

  std::optional<AppliedPush> run_next() override {
    if (quorum_) {
      const double now = context_.clock.now(), left = std::max(0.0, quorum_->gate.remaining_seconds(now));
      const std::optional<double> next = context_.clock.next_event_seconds();
      if (quorum_->gate.is_open(now, others_pending())) return merge();
      if (std::isfinite(left) && (!next || *next > now + left)) {
        context_.clock.advance(left);
        return merge();
      }
    }
    const std::optional<VirtualEvent> event = context_.clock.next();
    if (!event) fail(ErrorCode::kFailed, "virtual clock stalled: ", context_.queue.num_open(), " work items outstanding, no active worker");
    switch (event->kind) {
      case kIdle:
        take_item(event->worker);
        break;
      case kRestart:
        start_worker(event->worker);
        break;
      case kComputed:
        send_push(event->worker);
        break;
      case kPushArrived:
        return on_push(event->worker);
      default:
        on_death(event->worker);
    }
    return std::nullopt;
  }

  double waiting_seconds(int worker) const override {
    const Worker& own = workers_[static_cast<size_t>(worker)];
    const auto since = [&](const std::optional<double>& moment) { return moment ? context_.clock.now() - *moment : 0; };
    return since(own.idle_since) + since(own.pushed_since);
  }

  void wake() override {
    if (!context_.queue.has_next(context_.staleness_bound)) return;  // With stale:0 all workers but one are idle at each push.
    for (const auto& [since, worker] : idle_) {
      context_.statistics.worker(worker).waiting_seconds += context_.clock.now() - since;
      worker_at(worker).idle_since.reset();
      context_.clock.schedule(0, kIdle, worker);
    }
    idle_.clear();
  }

  Json state() const override {
    if (!quorum_) return assignments_state();
    Json absent = Json::array(), handed_over = Json::array();
    for (size_t worker = 0; worker < workers_.size(); ++worker) {
      if (!workers_[worker].is_alive) absent.push_back(worker);
      if (const auto since = workers_[worker].pushed_since) handed_over.push_back({worker, *since});
    }
    return Json{{"works", assignments_state()},
                {"absent", absent},
                {"handed_over", handed_over},
                {"complete_since", quorum_->gate.complete_since()}};
  }

  std::vector<FlatPiece> saved_pieces() override {
    std::vector<FlatPiece> pieces;
    for (size_t i = 0; i < workers_.size(); ++i) {
      if (!workers_[i].assignment) continue;
      const at::Tensor bytes = packed(workers_[i].assignment->tensors);
      pieces.push_back({concat("async/worker/", i), bytes, {bytes.numel()}, 0});
    }
    return joined(std::move(pieces), optimizers());
  }

  std::vector<FlatPiece> loaded_pieces(const Json& state, const std::string& where) override {
    if (!quorum_) return load_assignments(state, where);
    const JsonFields fields(state, where);
    const Json& handed_over = fields.array("handed_over", workers_.size());
    std::vector<FlatPiece> pieces = load_assignments(fields.member("works"), where);
    for (const int64_t worker : fields.naturals("absent", workers_.size())) {
      if (worker >= std::ssize(workers_)) fields.refuse("there is no worker ", worker);
      worker_at(static_cast<int>(worker)).is_alive = false;
    }
    for (const Json& row : handed_over) {
      const bool is_valid = row.is_array() && row.size() == 2 && is_natural(row[0]) && row[0].get<size_t>() < workers_.size() &&
                            row[1].is_number() && workers_[row[0].get<size_t>()].assignment && !workers_[row[0].get<size_t>()].pushed_since;
      if (!is_valid) fields.refuse("invalid row in \"handed_over\"");
      workers_[row[0].get<size_t>()].pushed_since = row[1].get<double>();
    }
    quorum_->gate.restore(static_cast<int>(handed_over.size()), fields.number("complete_since"));
    return joined(std::move(pieces), optimizers());
  }

  void loaded() override {
    for (const auto& [worker, bytes] : loading_) unpack(bytes, worker_at(worker).assignment->tensors);
    loading_.clear();
    for (Worker& worker : workers_)
      if (worker.trainer) worker.trainer->load_counts();
  }

 private:
  struct Worker {
    std::optional<Assignment> assignment;
    std::optional<double> idle_since;        // Found no work.
    std::optional<double> pushed_since;      // With a quorum: its push waits for the exchange.
    bool is_alive = true;                    // With a quorum.
    std::unique_ptr<LocalWorker> trainer{};  // With a quorum.
  };
  Worker& worker_at(int worker) { return workers_[static_cast<size_t>(worker)]; }

  /// A worker whose push waits for an exchange gets work after that.
  void start_worker(int worker) {
    worker_at(worker).is_alive = true;
    if (!worker_at(worker).pushed_since) context_.clock.schedule(0, kIdle, worker);
    schedule_death(worker, kDeath);
  }

  void take_item(int worker) {
    Worker& own = worker_at(worker);
    const std::optional<WorkItem> item = context_.queue.take(worker, context_.staleness_bound);
    if (!item) {
      own.idle_since = context_.clock.now();
      idle_.emplace(context_.clock.now(), worker);
      return;
    }
    Assignment assignment{.item = *item, .worker = worker};
    const double began = steady_seconds();
    compute(own, assignment);
    compute_seconds_ += steady_seconds() - began;
    own.assignment = std::move(assignment);
    const VirtualClock::Transfer transfer = context_.clock.send(VirtualClock::kToWorkers, context_.mode->pull_bytes());
    const double computing = context_.clock.work(worker, context_.item_seconds(*item));
    context_.statistics.add_bytes(context_.mode->pull_bytes(), 0);
    context_.statistics.add_seconds(
        worker, {.computing_seconds = computing, .waiting_seconds = transfer.begin, .moving_seconds = transfer.end - transfer.begin});
    context_.clock.schedule(transfer.end + computing, kComputed, worker);
  }

  void compute(Worker& worker, Assignment& assignment) {
    const StepNumbers numbers = context_.numbers();
    context_.mode->pull(assignment);
    if (!quorum_) return context_.mode->prepare_push(assignment, context_.compute(assignment.item, numbers.learning_rate), numbers);
    quorum_->server.copy_to_module();
    worker.trainer->begin();
    for (const WorkItem& item : context_.queue.steps_of(assignment.item.step, assignment.item.share)) {
      const StepNumbers own{context_.learning_rate_at(item.step), numbers.clip_norm};
      worker.trainer->step(item, context_.compute(item, own.learning_rate), own);
    }
    context_.mode->prepare_push(assignment, worker.trainer->end(), numbers);
  }

  void send_push(int worker) {
    const VirtualClock::Transfer transfer = context_.clock.send(VirtualClock::kToServer, context_.mode->push_bytes());
    const double moving = transfer.end - transfer.begin;
    context_.statistics.add_bytes(0, context_.mode->push_bytes());
    context_.statistics.add_seconds(worker, {.waiting_seconds = transfer.begin, .moving_seconds = moving, .pushing_seconds = moving});
    context_.clock.schedule(transfer.end, kPushArrived, worker);
  }

  std::optional<AppliedPush> on_push(int worker) {
    Worker& own = worker_at(worker);
    if (quorum_) {
      own.pushed_since = context_.clock.now();
      quorum_->gate.add(context_.clock.now());
      return std::nullopt;
    }
    Assignment assignment = *std::exchange(own.assignment, std::nullopt);
    const double began = steady_seconds();
    const AppliedPush push = apply_push(*context_.mode, assignment, context_.numbers(), context_.statistics, context_.queue);
    push_seconds_ += steady_seconds() - began;
    wake();  // Workers that were idle before come first.
    context_.clock.schedule(0, kIdle, worker);
    return push;
  }

  void on_death(int worker) {
    Worker& own = worker_at(worker);
    AsyncRecord::Worker& statistics = context_.statistics.worker(worker);
    ++statistics.deaths;
    own.is_alive = false;
    if (quorum_) own.trainer = std::make_unique<LocalWorker>(quorum_->module, quorum_->rule);
    context_.clock.cancel(worker);
    context_.clock.schedule(context_.spec.restart_seconds, kRestart, worker);
    if (own.pushed_since) return;
    statistics.lost += context_.queue.lose(worker);
    if (own.idle_since) {
      statistics.waiting_seconds += context_.clock.now() - *own.idle_since;
      idle_.erase({*own.idle_since, worker});
    }
    own.idle_since.reset();
    own.assignment.reset();
    context_.mode->forget(worker);
    wake();
  }

  /// Whether another worker is alive and may still push.
  bool others_pending() const {
    return std::any_of(workers_.begin(), workers_.end(),
                       [](const Worker& worker) { return worker.is_alive && !worker.pushed_since && !worker.idle_since; });
  }

  /// The exchange of a quorum.
  AppliedPush merge() {
    const double began = steady_seconds();
    std::vector<Assignment*> pushes;
    for (Worker& worker : workers_)
      if (worker.pushed_since) pushes.push_back(&*worker.assignment);
    const AppliedPush push = merge_pushes(quorum_->server, pushes, context_.statistics, context_.queue);
    for (const Assignment* const merged : pushes) {
      const int worker = merged->worker;
      Worker& own = worker_at(worker);
      context_.statistics.worker(worker).waiting_seconds += context_.clock.now() - *own.pushed_since;
      own.pushed_since.reset();
      own.assignment.reset();
      if (own.is_alive) context_.clock.schedule(0, kIdle, worker);
    }
    quorum_->gate.clear();
    push_seconds_ += steady_seconds() - began;
    wake();
    return push;
  }

  std::vector<FlatPiece> optimizers() {
    std::vector<FlatPiece> pieces;
    for (size_t worker = 0; worker < workers_.size() && quorum_; ++worker)
      for (FlatPiece& piece : workers_[worker].trainer->pieces()) {
        if (workers_.size() > 1) piece.name = name_of_worker(static_cast<int64_t>(worker), piece.name);
        pieces.push_back(std::move(piece));
      }
    return pieces;
  }

  Json assignments_state() const {
    Json workers = Json::array();
    for (size_t i = 0; i < workers_.size(); ++i) {
      if (workers_[i].idle_since) workers.push_back(Json{{"worker", i}, {"waits_since", *workers_[i].idle_since}});
      if (!workers_[i].assignment) continue;
      const Assignment& assignment = *workers_[i].assignment;
      Json missing = Json::array();
      for (size_t at = 0; at < assignment.tensors.size(); ++at)
        if (!assignment.tensors[at].defined()) missing.push_back(at);
      workers.push_back(Json{{"worker", i},
                             {"ticket", {assignment.item.step, assignment.item.share}},
                             {"base", {assignment.base_version, assignment.base_samples}},
                             {"loss", assignment.loss},
                             {"missing", missing}});
    }
    return workers;
  }

  std::vector<FlatPiece> load_assignments(const Json& state, const std::string& where) {
    if (!state.is_array())
      fail(ErrorCode::kBadInput, where, ": invalid state of the workers: expected a list, found ", json_for_errors(state));
    const auto last_worker = std::ssize(workers_) - 1;
    std::vector<FlatPiece> pieces;
    loading_.clear();
    std::set<int64_t> seen;
    for (const Json& row : state) {
      const JsonFields fields(row, where);
      const int64_t index = fields.natural("worker", last_worker);
      if (!seen.insert(index).second) fields.refuse("worker ", index, " appears twice");
      const int worker = static_cast<int>(index);
      if (fields.has("waits_since")) {
        worker_at(worker).idle_since = fields.number("waits_since");
        idle_.emplace(*worker_at(worker).idle_since, worker);
        continue;
      }
      const std::vector<int64_t> item = fields.naturals("ticket", 2), base = fields.naturals("base", 2);
      if (item.size() != 2 || base.size() != 2 || item[1] > last_worker) fields.refuse("invalid state of worker ", index);
      Assignment& assignment =
          worker_at(worker).assignment.emplace(Assignment{.item = context_.queue.item_at(item[0], static_cast<int>(item[1])),
                                                          .worker = worker,
                                                          .base_version = base[0],
                                                          .base_samples = base[1],
                                                          .loss = fields.number("loss"),
                                                          .tensors = context_.mode->empty_push()});
      for (const int64_t at : fields.naturals("missing", assignment.tensors.size())) {
        if (at >= std::ssize(assignment.tensors)) fields.refuse("worker ", index, " has no tensor ", at);
        assignment.tensors[static_cast<size_t>(at)] = at::Tensor();
      }
      const int64_t bytes = packed_bytes(assignment.tensors);
      loading_.emplace_back(worker, at::empty({bytes}, at::kByte));
      pieces.push_back({concat("async/worker/", index), loading_.back().second, {bytes}, 0});
    }
    return pieces;
  }

  std::optional<QuorumPolicy> quorum_;
  std::vector<Worker> workers_;
  std::set<std::pair<double, int>> idle_;            // Since when, and which worker.
  std::vector<std::pair<int, at::Tensor>> loading_;  // Packed assignments by worker.
};

}  // namespace

std::unique_ptr<VirtualDriver> make_async_driver(VirtualContext context, std::optional<QuorumPolicy> quorum) {
  return std::make_unique<AsyncDriver>(std::move(context), std::move(quorum));
}

}  // namespace cohort
