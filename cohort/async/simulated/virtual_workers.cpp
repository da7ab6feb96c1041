// A worker that is free takes a ticket, or waits until there is one that it may have. It gets the version of that moment. Its gradient is
// computed then, in real time, and kept until its push arrives, in virtual time: when the server's link has served it, latency and bytes of
// the pull, its computing time, latency and bytes of the push later. A worker that dies takes its work with it, wherever that was; its
// ticket goes to the next who asks, and it comes back, free, after the restart.
//
// So a worker in flight holds what it will push and no version of the weights: as many bytes as the mode says (bytes_in_flight).
#include "cohort/async/simulated/virtual_driver.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "cohort/async/packed_tensors.h"
#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/json_fields.h"
#include "cohort/parallel/local/fragments.h"

namespace cohort {

VirtualWorkers::VirtualWorkers(VirtualParts parts) : VirtualDriver(std::move(parts)), workers_(static_cast<size_t>(parts_.spec.workers)) {}

void VirtualWorkers::begin() {
  for (int worker = 0; worker < parts_.spec.workers; ++worker) come_alive(worker);
}

void VirtualWorkers::come_alive(int worker) {
  parts_.clock.schedule(0, kFree, worker);
  if (const auto seconds = parts_.clock.lifetime(worker)) parts_.clock.schedule(*seconds, kDies, worker);
}

std::optional<AppliedPush> VirtualWorkers::act() {
  const std::optional<VirtualEvent> event = parts_.clock.next();
  if (!event)
    fail(ErrorCode::kFailed, "the virtual clock has come to a halt: ", parts_.tickets.num_open(), " tickets are open and nobody works");
  switch (event->kind) {
    case kFree:
    case kReturns:
      if (event->kind == kReturns) come_alive(event->worker);
      else take(event->worker);
      break;
    case kComputed:
      send(event->worker);
      break;
    case kArrived:
      return arrive(event->worker);
    default:
      die(event->worker);
  }
  return std::nullopt;
}

void VirtualWorkers::compute(int /*worker*/, Work& work) {
  const StepNumbers numbers = parts_.numbers();
  parts_.mode->pull(work);
  parts_.mode->worked(work, parts_.compute(work.ticket, numbers.learning_rate), numbers);
}

void VirtualWorkers::take(int worker) {
  const std::optional<Ticket> ticket = parts_.tickets.take(worker, parts_.most_ahead);
  if (!ticket) {
    of(worker).waits_since = parts_.clock.now();
    waiting_.emplace(parts_.clock.now(), worker);
    return;
  }
  Work work{.ticket = *ticket, .worker = worker};
  const double began = steady_seconds();
  compute(worker, work);
  compute_seconds_ += steady_seconds() - began;
  of(worker).work = std::move(work);
  const VirtualClock::Transfer transfer = parts_.clock.send(VirtualClock::kToWorkers, parts_.mode->pull_bytes());
  const double computing = parts_.clock.work(worker, parts_.seconds_of(*ticket));
  parts_.accounts.moved(parts_.mode->pull_bytes(), 0);
  AsyncRecord::Worker& account = parts_.accounts.of(worker);
  account.waiting_seconds += transfer.begin;
  account.moving_seconds += transfer.end - transfer.begin;
  account.computing_seconds += computing;
  parts_.clock.schedule(transfer.end + computing, kComputed, worker);
}

void VirtualWorkers::send(int worker) {
  const VirtualClock::Transfer transfer = parts_.clock.send(VirtualClock::kToServer, parts_.mode->push_bytes());
  parts_.accounts.moved(0, parts_.mode->push_bytes());
  parts_.accounts.of(worker).waiting_seconds += transfer.begin;
  parts_.accounts.of(worker).moving_seconds += transfer.end - transfer.begin;
  parts_.accounts.of(worker).pushing_seconds += transfer.end - transfer.begin;
  parts_.clock.schedule(transfer.end, kArrived, worker);
}

std::optional<AppliedPush> VirtualWorkers::arrive(int worker) {
  Work work = std::move(*of(worker).work);
  of(worker).work.reset();
  const double began = steady_seconds();
  const PushOutcome outcome = parts_.mode->push(work, parts_.numbers());
  push_seconds_ += steady_seconds() - began;
  parts_.accounts.push(worker, work.ticket, outcome);
  parts_.tickets.finish(work.ticket);
  wake();  // Who waited first.
  parts_.clock.schedule(0, kFree, worker);
  return AppliedPush{work.ticket, work.loss, outcome};
}

void VirtualWorkers::die(int worker) {
  Worker& own = of(worker);
  ++parts_.accounts.of(worker).deaths;
  parts_.accounts.of(worker).lost += parts_.tickets.lose(worker);
  if (own.waits_since) {
    parts_.accounts.of(worker).waiting_seconds += parts_.clock.now() - *own.waits_since;
    waiting_.erase({*own.waits_since, worker});
  }
  own = {};
  parts_.mode->forget(worker);
  parts_.clock.cancel(worker);
  parts_.clock.schedule(parts_.spec.restart_seconds, kReturns, worker);
  wake();
}

void VirtualWorkers::wake() {
  if (!parts_.tickets.has_next(parts_.most_ahead)) return;  // With stale:0 all but one wait at each push.
  for (const auto& [since, worker] : waiting_) {
    parts_.accounts.of(worker).waiting_seconds += parts_.clock.now() - since;
    of(worker).waits_since.reset();
    parts_.clock.schedule(0, kFree, worker);
  }
  waiting_.clear();
}

double VirtualWorkers::waiting_seconds(int worker) const {
  const std::optional<double>& since = workers_[static_cast<size_t>(worker)].waits_since;
  return since ? parts_.clock.now() - *since : 0;
}

std::vector<FlatPiece> VirtualWorkers::saved_pieces() {
  std::vector<FlatPiece> pieces;
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (!workers_[i].work) continue;
    const at::Tensor bytes = packed(workers_[i].work->tensors);
    pieces.push_back({"async/worker/" + std::to_string(i), bytes, {bytes.numel()}, 0});
  }
  return pieces;
}

Json VirtualWorkers::state() const {
  Json workers = Json::array();
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].waits_since) workers.push_back(Json{{"worker", i}, {"waits_since", *workers_[i].waits_since}});
    if (!workers_[i].work) continue;
    const Work& work = *workers_[i].work;
    Json missing = Json::array();
    for (size_t at = 0; at < work.tensors.size(); ++at)
      if (!work.tensors[at].defined()) missing.push_back(at);
    workers.push_back(Json{{"worker", i},
                           {"ticket", {work.ticket.step, work.ticket.share}},
                           {"base", {work.base_version, work.base_samples}},
                           {"loss", work.loss},
                           {"missing", missing}});
  }
  return workers;
}

std::vector<FlatPiece> VirtualWorkers::loaded_pieces(const Json& state, const std::string& where) {
  const auto refuse = [&] { fail(ErrorCode::kBadInput, where, ": the state of the workers is damaged"); };
  const auto is_pair = [&](const Json& value) {
    return value.is_array() && value.size() == 2 && is_natural(value[0]) && is_natural(value[1]);
  };
  if (!state.is_array()) refuse();
  std::vector<FlatPiece> pieces;
  being_loaded_.clear();
  std::set<int64_t> seen;
  for (const Json& row : state) {
    if (!row.is_object() || !is_natural(row.value("worker", Json()))) refuse();
    const int64_t index = row["worker"].get<int64_t>();
    if (index >= std::ssize(workers_) || !seen.insert(index).second) refuse();
    Worker& own = of(static_cast<int>(index));
    if (row.contains("waits_since")) {
      if (!row["waits_since"].is_number()) refuse();
      own.waits_since = row["waits_since"].get<double>();
      waiting_.emplace(*own.waits_since, static_cast<int>(index));
      continue;
    }
    const Json ticket = row.value("ticket", Json()), base = row.value("base", Json()), missing = row.value("missing", Json());
    if (!is_pair(ticket) || ticket[1].get<int64_t>() >= std::ssize(workers_) || !is_pair(base) || !row.value("loss", Json()).is_number() ||
        !missing.is_array())
      refuse();
    own.work = Work{.ticket = parts_.tickets.ticket_of(ticket[0].get<int64_t>(), ticket[1].get<int>()),
                    .worker = static_cast<int>(index),
                    .base_version = base[0].get<int64_t>(),
                    .base_samples = base[1].get<int64_t>(),
                    .loss = row["loss"].get<double>()};
    own.work->tensors = parts_.mode->empty_handed_over();
    for (const Json& at : missing) {
      if (!is_natural(at) || at.get<size_t>() >= own.work->tensors.size()) refuse();
      own.work->tensors[at.get<size_t>()] = at::Tensor();
    }
    const int64_t bytes = packed_bytes(own.work->tensors);
    being_loaded_.emplace_back(static_cast<int>(index), at::empty({bytes}, at::kByte));
    pieces.push_back({"async/worker/" + std::to_string(index), being_loaded_.back().second, {bytes}, 0});
  }
  return pieces;
}

void VirtualWorkers::loaded() {
  for (const auto& [worker, bytes] : being_loaded_) unpack(bytes, of(worker).work->tensors);
  being_loaded_.clear();
}

// What a worker learns in its H steps is computed when it gets them, in real time, and kept until it is merged, as other modes keep
// gradients. A worker that dies takes along what it has not handed over, and its optimizer; what it has handed over is merged.

QuorumWorkers::QuorumWorkers(VirtualParts parts, const torch::nn::Module& module, const UpdateRule& rule, LocalServer& server,
                             RoundGate gate)
    : VirtualWorkers(std::move(parts)), module_(module), rule_(rule), server_(server), gate_(gate) {
  for (int worker = 0; worker < parts_.spec.workers; ++worker)
    learners_.push_back({.trainer = std::make_unique<LocalWorker>(module, rule), .is_there = true, .handed_over_since = {}});
}

/// Somebody who is alive, has nothing handed over and is not without a ticket.
bool QuorumWorkers::others_come() const {
  for (int worker = 0; worker < parts_.spec.workers; ++worker) {
    const Learner& learner = learners_[static_cast<size_t>(worker)];
    if (learner.is_there && !learner.handed_over_since && !is_waiting(worker)) return true;
  }
  return false;
}

std::optional<AppliedPush> QuorumWorkers::act() {
  const double now = parts_.clock.now(), left = std::max(0.0, gate_.seconds_left(now));
  const std::optional<double> next = parts_.clock.next_moment();
  if (gate_.opens(now, others_come())) return merge();
  if (std::isfinite(left) && (!next || *next > now + left)) {
    parts_.clock.advance(left);
    return merge();
  }
  return VirtualWorkers::act();
}

void QuorumWorkers::compute(int worker, Work& work) {
  LocalWorker& trainer = *learners_[static_cast<size_t>(worker)].trainer;
  const StepNumbers numbers = parts_.numbers();
  server_.pull(work);
  server_.show();
  trainer.begin();
  for (const Ticket& ticket : parts_.tickets.steps_of(work.ticket.step, work.ticket.share)) {
    const StepNumbers own{parts_.rate_of(ticket.step), numbers.clip_norm};
    trainer.step(ticket, parts_.compute(ticket, own.learning_rate), own);
  }
  server_.worked(work, trainer.end(), numbers);
}

std::optional<AppliedPush> QuorumWorkers::arrive(int worker) {
  learners_[static_cast<size_t>(worker)].handed_over_since = parts_.clock.now();
  gate_.add(parts_.clock.now());
  return std::nullopt;
}

AppliedPush QuorumWorkers::merge() {
  const double began = steady_seconds();
  std::vector<int> those;
  for (int worker = 0; worker < parts_.spec.workers; ++worker)
    if (learners_[static_cast<size_t>(worker)].handed_over_since) those.push_back(worker);
  const auto place = [&](int worker) { return std::pair(work_of(worker).ticket.share, work_of(worker).ticket.step); };
  std::sort(those.begin(), those.end(), [&](int a, int b) { return place(a) < place(b); });
  std::vector<Work*> works;
  for (const int worker : those) works.push_back(&work_of(worker));
  const std::vector<PushOutcome> outcomes = server_.merge(works);
  const AppliedPush push = as_one_push(works);
  for (size_t i = 0; i < those.size(); ++i) {
    const int worker = those[i];
    Learner& learner = learners_[static_cast<size_t>(worker)];
    parts_.accounts.push(worker, works[i]->ticket, outcomes[i]);
    parts_.accounts.of(worker).waiting_seconds += parts_.clock.now() - *learner.handed_over_since;
    parts_.tickets.finish(works[i]->ticket);
    learner.handed_over_since.reset();
    drop_work(worker);
    if (learner.is_there) parts_.clock.schedule(0, kFree, worker);
  }
  gate_.clear();
  push_seconds_ += steady_seconds() - began;
  wake();
  return push;
}

void QuorumWorkers::die(int worker) {
  Learner& learner = learners_[static_cast<size_t>(worker)];
  learner.is_there = false;
  learner.trainer = std::make_unique<LocalWorker>(module_, rule_);
  if (!learner.handed_over_since) return VirtualWorkers::die(worker);
  ++parts_.accounts.of(worker).deaths;
  parts_.clock.cancel(worker);
  parts_.clock.schedule(parts_.spec.restart_seconds, kReturns, worker);
}

void QuorumWorkers::come_alive(int worker) {
  Learner& learner = learners_[static_cast<size_t>(worker)];
  learner.is_there = true;
  if (!learner.handed_over_since) return VirtualWorkers::come_alive(worker);
  // It is free after the exchange that its work waits for.
  if (const auto seconds = parts_.clock.lifetime(worker)) parts_.clock.schedule(*seconds, kDies, worker);
}

double QuorumWorkers::waiting_seconds(int worker) const {
  const Learner& learner = learners_[static_cast<size_t>(worker)];
  return VirtualWorkers::waiting_seconds(worker) + (learner.handed_over_since ? parts_.clock.now() - *learner.handed_over_since : 0);
}

std::vector<FlatPiece> QuorumWorkers::optimizers() {
  std::vector<FlatPiece> pieces;
  for (size_t worker = 0; worker < learners_.size(); ++worker)
    for (FlatPiece& piece : learners_[worker].trainer->pieces()) {
      if (learners_.size() > 1) piece.name = name_of_worker(static_cast<int64_t>(worker), piece.name);
      pieces.push_back(std::move(piece));
    }
  return pieces;
}

std::vector<FlatPiece> QuorumWorkers::saved_pieces() {
  std::vector<FlatPiece> pieces = VirtualWorkers::saved_pieces();
  for (FlatPiece& piece : optimizers()) pieces.push_back(std::move(piece));
  return pieces;
}

Json QuorumWorkers::state() const {
  Json absent = Json::array(), handed_over = Json::array();
  for (size_t worker = 0; worker < learners_.size(); ++worker) {
    if (!learners_[worker].is_there) absent.push_back(worker);
    if (const auto since = learners_[worker].handed_over_since) handed_over.push_back({worker, *since});
  }
  return Json{
      {"works", VirtualWorkers::state()}, {"absent", absent}, {"handed_over", handed_over}, {"complete_since", gate_.complete_since()}};
}

std::vector<FlatPiece> QuorumWorkers::loaded_pieces(const Json& state, const std::string& where) {
  const auto refuse = [&] { fail(ErrorCode::kBadInput, where, ": the state of the workers is damaged"); };
  const auto part = [&](const char* key) { return state.is_object() ? state.value(key, Json()) : Json(); };
  const auto index = [&](const Json& value) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() >= learners_.size()) refuse();
    return value.get<size_t>();
  };
  const Json absent = part("absent"), handed_over = part("handed_over"), complete_since = part("complete_since");
  if (!absent.is_array() || !handed_over.is_array() || !complete_since.is_number()) refuse();
  std::vector<FlatPiece> pieces = VirtualWorkers::loaded_pieces(part("works"), where);
  for (const Json& worker : absent) learners_[index(worker)].is_there = false;
  for (const Json& row : handed_over) {
    if (!row.is_array() || row.size() != 2 || !row[1].is_number()) refuse();
    const size_t worker = index(row[0]);
    if (learners_[worker].handed_over_since || !has_work(static_cast<int>(worker))) refuse();
    learners_[worker].handed_over_since = row[1].get<double>();
  }
  gate_.restore(static_cast<int>(handed_over.size()), complete_since.get<double>());
  for (FlatPiece& piece : optimizers()) pieces.push_back(std::move(piece));
  return pieces;
}

void QuorumWorkers::loaded() {
  VirtualWorkers::loaded();
  for (Learner& learner : learners_) learner.trainer->load_counts();
}

}  // namespace cohort
