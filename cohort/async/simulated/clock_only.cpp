// The drivers of async/simulated over a mode whose work is empty. Rounds of local:H are step rounds whose exchange comes every H steps:
// no worker dies here, so nothing else of LocalRounds is needed.
#include "cohort/async/simulated/clock_only.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "cohort/async/simulated/virtual_driver.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"

namespace cohort {
namespace {

constexpr int64_t kLeastSteps = 100, kMostTickets = 40'000;
constexpr double kPausesOfWorker = 20;
constexpr uint64_t kSeed = 1;

/// Counts versions and samples, and holds no model.
class CountedMode : public AsyncMode {
 public:
  explicit CountedMode(const SyncConditions& conditions) : conditions_(conditions) {}

  void pull(Work& work) override { work.base_version = version_, work.base_samples = samples_; }
  void worked(Work& /*work*/, TicketResult /*result*/, const StepNumbers& /*numbers*/) override {}
  PushOutcome push(Work& work, const StepNumbers& /*numbers*/) override {
    const PushOutcome outcome{
        .staleness = version_ - work.base_version,
        .late_steps = static_cast<double>(samples_ - work.base_samples) / static_cast<double>(conditions_.global_batch)};
    ++version_;
    samples_ += work.ticket.num_samples();
    return outcome;
  }
  int64_t version() const override { return version_; }
  int64_t pull_bytes() const override { return conditions_.pull_bytes; }
  int64_t push_bytes() const override { return conditions_.push_bytes; }

  std::vector<at::Tensor> served() const override { return {}; }
  std::vector<at::Tensor> empty_handed_over() const override { return {}; }
  size_t num_optional() const override { return 0; }
  void show() override {}
  int64_t bytes_in_flight() const override { return 0; }
  std::vector<FlatPiece> saved_pieces() override { return {}; }
  Json state() const override { return nullptr; }
  std::vector<FlatPiece> loaded_pieces(const Json& /*state*/, const std::string& /*where*/) override { return {}; }
  void loaded(const Json& /*state*/) override {}

 private:
  const SyncConditions& conditions_;
  int64_t version_ = 0, samples_ = 0;
};

/// Step rounds whose workers meet every H steps.
SyncPace pace_of_rounds(const SyncConditions& conditions, int64_t steps_between, const TicketOptions& options) {
  VirtualClock clock(conditions.clock, kSeed);
  const Tickets tickets(options);
  const auto full_ticket = static_cast<double>(tickets.ticket_of(0, 0).num_samples());
  const int workers = conditions.clock.workers;
  for (int64_t step = 0; step < options.end_step; step += steps_between) {
    double slowest = 0;
    for (int worker = 0; worker < workers; ++worker) {
      const double share = static_cast<double>(tickets.ticket_of(0, worker).num_samples()) / full_ticket;
      double seconds = 0;
      for (int64_t i = 0; i < steps_between; ++i) seconds += clock.work(worker, conditions.clock.compute_seconds * share);
      slowest = std::max(slowest, seconds);
    }
    clock.advance(slowest + 2 * (workers - 1) * clock.transfer_seconds(conditions.push_bytes / workers));
  }
  return {.samples_per_second = static_cast<double>(options.end_step * conditions.global_batch) / clock.now()};
}

SyncPace pace_of_workers(const SyncMode& mode, const SyncConditions& conditions, const TicketOptions& options) {
  VirtualClock clock(conditions.clock, kSeed);
  Tickets tickets(options);
  CountedMode counted(conditions);
  Accounts accounts(conditions.clock.workers);
  const auto full_ticket = static_cast<double>(tickets.ticket_of(0, 0).num_samples());
  VirtualWorkers workers({.spec = conditions.clock,
                          .clock = clock,
                          .tickets = tickets,
                          .mode = &counted,
                          .accounts = accounts,
                          .compute = [](const Ticket&, double) { return TicketResult(); },
                          .numbers = [] { return StepNumbers(); },
                          .rate_of = [](int64_t) { return 0.0; },
                          .seconds_of =
                              [&](const Ticket& ticket) {
                                return conditions.clock.compute_seconds * static_cast<double>(ticket.num_samples()) / full_ticket +
                                       conditions.ticket_seconds;
                              },
                          .most_ahead = mode.kind == SyncKind::kStale ? mode.number : -1});
  workers.begin();
  while (!tickets.all_finished()) workers.act();
  const AsyncRecord record = accounts.record();
  return {.samples_per_second = static_cast<double>(record.samples) / clock.now(), .mean_late_steps = record.mean_late_steps};
}

}  // namespace

int64_t num_steps_of_pace(const SyncConditions& conditions) {
  const VirtualSpec& clock = conditions.clock;
  const double for_pauses = clock.pause_every_seconds > 0 ? kPausesOfWorker * clock.pause_every_seconds / clock.compute_seconds : 0;
  const int64_t most = std::max<int64_t>(1, kMostTickets / clock.workers);
  return std::min(most, std::max(kLeastSteps, static_cast<int64_t>(std::min(for_pauses, 1e9))));
}

SyncPace clock_only_pace(const SyncMode& mode, const SyncConditions& conditions) {
  const int64_t between = steps_between_exchanges(mode);
  const int64_t rounds = (num_steps_of_pace(conditions) + between - 1) / between;
  const TicketOptions options{.num_samples = conditions.global_batch * rounds * between,
                              .global_batch = conditions.global_batch,
                              .num_shares = conditions.clock.workers,
                              .granularity = conditions.granularity,
                              .end_step = rounds * between};
  const int workers = conditions.clock.workers;
  if (share_of_rank(options.global_batch, workers - 1, workers, options.granularity).size() == 0)
    fail(ErrorCode::kBadInput, workers, " workers: a step of ", options.global_batch, " samples leaves some of them without");
  if (mode.kind == SyncKind::kStep || is_local(mode)) return pace_of_rounds(conditions, between, options);
  if (mode.kind == SyncKind::kQueue || is_in_order(mode)) fail(ErrorCode::kBadInput, "sync=", to_text(mode), ": its pace is not simulated");
  return pace_of_workers(mode, conditions, options);
}

}  // namespace cohort
