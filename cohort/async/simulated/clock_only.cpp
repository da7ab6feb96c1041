// Simulates asynchronous workers with a mode that computes nothing. No worker dies here, so synchronous modes need only the time of the
// slowest worker and an exchange every H steps, without the drivers for them.
#include "cohort/async/simulated/clock_only.h"

#include <algorithm>

#include "cohort/async/simulated/virtual_driver.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"

namespace cohort {
namespace {

constexpr int64_t kMinSteps = 100, kMaxItems = 40'000;
constexpr double kPausesPerWorker = 20;
constexpr uint64_t kSeed = 1;

/// Counts versions and samples without a model.
class CountedMode : public AsyncMode {
 public:
  explicit CountedMode(const SyncConditions& conditions) : conditions_(conditions) {}

  void pull(Assignment& assignment) override { version_.mark_pull(assignment); }
  void prepare_push(Assignment& /*assignment*/, WorkResult /*result*/, const StepNumbers& /*numbers*/) override {}
  PushOutcome push(Assignment& assignment, const StepNumbers& /*numbers*/) override {
    const PushOutcome outcome = version_.outcome(assignment, conditions_.global_batch);
    version_.add_push(assignment);
    return outcome;
  }
  int64_t version() const override { return version_.version; }
  int64_t pull_bytes() const override { return conditions_.pull_bytes; }
  int64_t push_bytes() const override { return conditions_.push_bytes; }

  std::vector<at::Tensor> served_tensors() const override { return {}; }
  std::vector<FlatPiece> saved_pieces() override { return {}; }
  Json state() const override { return nullptr; }
  std::vector<FlatPiece> loaded_pieces(const Json& /*state*/, const std::string& /*where*/) override { return {}; }
  void loaded(const Json& /*state*/) override {}

 private:
  const SyncConditions& conditions_;
  ModelVersion version_;
};

SyncPace synchronous_pace(const SyncConditions& conditions, int64_t steps_between, const WorkQueueOptions& options) {
  VirtualClock clock(conditions.clock, kSeed);
  const WorkQueue queue(options);
  const auto full_item = static_cast<double>(queue.item_at(0, 0).num_samples());
  const int workers = conditions.clock.workers;
  for (int64_t step = 0; step < options.end_step; step += steps_between) {
    double slowest = 0;
    for (int worker = 0; worker < workers; ++worker) {
      const double share = static_cast<double>(queue.item_at(0, worker).num_samples()) / full_item;
      double seconds = 0;
      for (int64_t i = 0; i < steps_between; ++i) seconds += clock.work(worker, conditions.clock.compute_seconds * share);
      slowest = std::max(slowest, seconds);
    }
    clock.advance(slowest + 2 * (workers - 1) * clock.transfer_seconds(conditions.push_bytes / workers));
  }
  return {.samples_per_second = static_cast<double>(options.end_step * conditions.global_batch) / clock.now()};
}

SyncPace asynchronous_pace(const SyncMode& mode, const SyncConditions& conditions, const WorkQueueOptions& options) {
  VirtualClock clock(conditions.clock, kSeed);
  WorkQueue queue(options);
  CountedMode counted(conditions);
  AsyncStatistics statistics(conditions.clock.workers);
  const auto full_item = static_cast<double>(queue.item_at(0, 0).num_samples());
  const auto workers = make_async_driver(
      {.spec = conditions.clock,
       .clock = clock,
       .queue = queue,
       .mode = &counted,
       .statistics = statistics,
       .compute = [](const WorkItem&, double) { return WorkResult(); },
       .numbers = [] { return StepNumbers(); },
       .learning_rate_at = [](int64_t) { return 0.0; },
       .item_seconds =
           [&](const WorkItem& item) {
             return conditions.clock.compute_seconds * static_cast<double>(item.num_samples()) / full_item + conditions.work_item_seconds;
           },
       .staleness_bound = mode.kind == SyncKind::kStale ? mode.number : -1});
  workers->begin();
  while (!queue.all_finished()) workers->run_next();
  const AsyncRecord record = statistics.record();
  return {.samples_per_second = static_cast<double>(record.samples) / clock.now(), .mean_late_steps = record.mean_late_steps};
}

}  // namespace

int64_t num_steps_of_pace(const SyncConditions& conditions) {
  const VirtualSpec& clock = conditions.clock;
  const double for_pauses = clock.pause_every_seconds > 0 ? kPausesPerWorker * clock.pause_every_seconds / clock.compute_seconds : 0;
  const int64_t most = std::max<int64_t>(1, kMaxItems / clock.workers);
  return std::min(most, std::max(kMinSteps, static_cast<int64_t>(std::min(for_pauses, 1e9))));
}

SyncPace clock_only_pace(const SyncMode& mode, const SyncConditions& conditions) {
  const int64_t between = steps_between_exchanges(mode);
  const int64_t rounds = (num_steps_of_pace(conditions) + between - 1) / between;
  const WorkQueueOptions options{.num_samples = conditions.global_batch * rounds * between,
                                 .global_batch = conditions.global_batch,
                                 .num_shares = conditions.clock.workers,
                                 .granularity = conditions.granularity,
                                 .end_step = rounds * between};
  const int workers = conditions.clock.workers;
  if (share_of_rank(options.global_batch, workers - 1, workers, options.granularity).size() == 0)
    fail(ErrorCode::kBadInput, workers, " workers: a step of ", options.global_batch, " samples leaves some of them without");
  if (mode.kind == SyncKind::kStep || is_local(mode)) return synchronous_pace(conditions, between, options);
  if (mode.kind == SyncKind::kQueue || is_in_order(mode)) fail(ErrorCode::kBadInput, "sync=", to_text(mode), ": its pace is not simulated");
  return asynchronous_pace(mode, conditions, options);
}

}  // namespace cohort
