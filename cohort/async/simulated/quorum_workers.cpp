// What a worker learns in its H steps is computed when it gets them, in real time, and kept until it is merged, as other modes keep
// gradients. A worker that dies takes along what it has not handed over, and its optimizer; what it has handed over is merged.
#include "cohort/async/simulated/quorum_workers.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/parallel/local/fragments.h"

namespace cohort {

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
