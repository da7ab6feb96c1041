// A study on the ranks of a job, and the forecast of one.
//
// Run. Rank 0 has a coordinator (study_coordinator.h) on a thread of its own, and every rank, rank 0 too, a worker (study_worker.h).
//   1. The ranks agree on the coordinator's endpoint: inherited by forked ranks, else by the job's store.
//   2. Each worker connects and trains the trials that it is sent, until the coordinator ends the study.
//   3. Rank 0 joins the coordinator; its result or error is that of the study.
// Cost: messages of a few hundred bytes per trial plus its measurements (world/messages/), whatever the model.
//
// Forecast (--dry-run). Steps are an upper bound: every trial that is left, with its whole budget; points that diverge come on top but end
// early. Hours are worker-hours divided by the workers, as trials are independent. Batches of several workers are counted as if they
// divided evenly.
#include "cohort/trials/run_study.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/comm/group.h"
#include "cohort/comm/rendezvous/store.h"
#include "cohort/data/source/source.h"
#include "cohort/study/noise/noisy_quadratic.h"
#include "cohort/study/search/study_queue.h"
#include "cohort/study/search/trial_runner.h"
#include "cohort/study/store/store.h"
#include "cohort/trials/model_trial.h"
#include "cohort/trials/study_coordinator.h"
#include "cohort/trials/study_worker.h"
#include "cohort/world/messages/message_client.h"
#include "cohort/world/messages/message_server.h"
#include "cohort/world/stop.h"

namespace cohort {

namespace {

constexpr const char* kEndpointKey = "study/endpoint";

/// The coordinator's endpoint, and its listener on rank 0, which keeps `store` until all ranks have read the endpoint from it.
ServerAddress meet_coordinator(const World& world, const StudyRunOptions& options, c10::intrusive_ptr<c10d::Store>& store) {
  if (options.listener || world.size == 1) {
    ServerAddress meeting = local_server_address(options.listener ? std::move(*options.listener) : MessageListener::for_forks());
    if (world.rank != 0) meeting.listener.reset();  // Forked ranks inherited it.
    return meeting;
  }
  store = make_store(world, options.timeout);
  ServerAddress meeting = share_server_address(world, *store, kEndpointKey, options.timeout);
  if (world.rank != 0) store.reset();
  return meeting;
}

/// `stop` is called after every step of a model's trial; may be empty. Errors as make_model_runner().
std::unique_ptr<study::TrialRunner> make_study_runner(const study::StudySpec& spec, const StudyWorkload& workload, const Group& team,
                                                      double snapshot_seconds, std::function<bool()> stop) {
  if (spec.is_noisy_quadratic()) return study::make_noisy_quadratic_runner(spec);
  return make_model_runner(spec, workload.data, team, {.snapshot_seconds = snapshot_seconds, .stop = std::move(stop)});
}

}  // namespace

StudyWorkload open_study_workload(const study::StudySpec& spec) {
  if (spec.is_noisy_quadratic()) return {};
  // Without the study's seed: synthetic data is the same for every seed of a study.
  const DataSet data =
      open_data(spec.data, {.context = spec.context, .image_size = spec.image_size, .validation_samples = spec.val_samples});
  auto samples = std::make_shared<const TrialData>(data, trial_data_options(spec));
  const int64_t num_train_samples = samples->train.num_samples();
  return {std::move(samples), num_train_samples};
}

int run_study(const study::StudySpec& spec, const StudyWorkload& workload, const World& world, const StudyRunOptions& options) {
  catch_stop_signals();
  std::optional<ExitSoonAfterStop> ends;
  if (!options.listener && world.size > 1) ends.emplace();
  c10::intrusive_ptr<c10d::Store> store;
  ServerAddress meeting = meet_coordinator(world, options, store);
  ends.reset();
  // Forked ranks connect for certain, or their launcher reports the reason.
  const double join_seconds = options.listener ? std::max(options.timeout, 60.0) : options.timeout;
  const MessageLimits limits{.silence_seconds = options.timeout};
  int failed_rank = -1;
  std::future<int> coordinator;
  if (world.rank == 0) {
    CoordinatorOptions coordinator_options{.folder = options.folder,
                                           .num_ranks = world.size,
                                           .json = options.json,
                                           .quiet = options.quiet,
                                           .num_train_samples = workload.num_train_samples,
                                           .join_seconds = join_seconds,
                                           .timeout = options.timeout,
                                           .on_all_connected = [&store] { store.reset(); }};
    // Its connections close when it ends, so that no worker waits for it.
    coordinator = std::async(std::launch::async, [&spec, &failed_rank, coordinator_options = std::move(coordinator_options),
                                                  server = MessageServer(std::move(*meeting.listener), limits)]() mutable {
      StudyCoordinator running(spec, std::move(coordinator_options), std::move(server));
      try {
        return running.run();
      } catch (...) {
        failed_rank = running.failed_rank();
        throw;
      }
    });
  }
  int code = 0;
  std::exception_ptr error;
  try {
    MessageClient link(meeting.endpoint, meeting.secret,
                       {.name = concat("rank ", world.rank), .server_name = "rank 0, which holds the study,", .limits = limits});
    if (!options.listener && world.size > 1) ends.emplace();
    link.connect(join_seconds);
    ends.reset();
    StudyWorker worker(
        spec, world, {.backend = options.backend, .timeout = options.timeout},
        [&](const Group& team, std::function<bool()> stop) {
          return make_study_runner(spec, workload, team, options.snapshot_seconds, std::move(stop));
        },
        std::move(link));
    code = worker.run();
  } catch (...) {
    error = std::current_exception();
  }
  if (coordinator.valid()) {
    try {
      code = coordinator.get();
    } catch (const std::exception& cause) {
      // A failure of another rank is reported by that rank; one of this rank is thrown below, and the coordinator only repeats it.
      if (failed_rank > 0) fail(ErrorCode::kEnvironment, "the study was ended: ", cause.what());
      if (!error || failed_rank != 0) throw;
    }
  }
  if (error) std::rethrow_exception(error);
  return code;
}

// --- The forecast.

namespace {

struct BatchForecast {
  int64_t batch_size = 0, num_trials = 0, train_steps = 0, num_done = 0, num_steps = 0, num_evaluations = 0;
  int team = 1;
  study::TrialRunner::Cost cost;
  double hours = 0;  ///< Wall clock on all workers.
};

int64_t num_done(const std::string& folder, int64_t batch_size) {
  if (folder.empty() || !std::filesystem::exists(folder + "/study.db")) return 0;
  int64_t done = 0;
  for (const study::Trial& trial : study::Store::open_readonly(folder).trials(batch_size))
    done += trial.status == study::TrialStatus::kComplete || trial.status == study::TrialStatus::kCensored;
  return done;
}

void check_same_study(const study::StudySpec& spec, const std::string& folder) {
  if (folder.empty()) return;
  study::check_holds_nothing_else(folder);
  if (!std::filesystem::exists(folder + "/study.db")) return;
  const std::string difference = study::explain_difference(fingerprint(study::Store::open_readonly(folder).spec()), fingerprint(spec));
  if (!difference.empty()) fail(ErrorCode::kBadInput, folder, " holds another study: ", difference, "; give a new folder");
}

std::string hours_text(double hours) { return human_seconds(hours * 3600); }

void print_line(const BatchForecast& forecast) {
  const Json line{{"event", "forecast"},
                  {"batch_size", forecast.batch_size},
                  {"trials", forecast.num_trials},
                  {"done", forecast.num_done},
                  {"steps", forecast.num_steps},
                  {"team", forecast.team},
                  {"step_seconds", forecast.cost.step_seconds},
                  {"evaluation_seconds", forecast.cost.evaluation_seconds},
                  {"hours", forecast.hours}};
  std::printf("%s\n", line.dump().c_str());
}

void print_row(const BatchForecast& forecast) {
  std::printf("  %10s %8lld %8lld %14s %12s %12s %14s%s\n", with_commas(forecast.batch_size).c_str(),
              static_cast<long long>(forecast.num_trials), static_cast<long long>(forecast.num_done),
              with_commas(forecast.num_steps).c_str(), human_seconds(forecast.cost.step_seconds).c_str(),
              human_seconds(forecast.cost.evaluation_seconds).c_str(), hours_text(forecast.hours).c_str(),
              forecast.team > 1 ? concat("   on ", forecast.team, " workers").c_str() : "");
}

}  // namespace

void forecast_study(const study::StudySpec& spec, const StudyWorkload& workload, const std::string& folder, int num_workers, bool json) {
  check_same_study(spec, folder);
  const auto runner = make_study_runner(spec, workload, Group(), 0, {});
  if (!json) {
    std::printf("%s on %d worker(s), at most:\n", spec.name.c_str(), num_workers);
    std::printf("  %10s %8s %8s %14s %12s %12s %14s\n", "batch size", "trials", "done", "steps left", "a step", "evaluation", "time");
  }
  int64_t all_trials = 0, all_steps = 0;
  double all_hours = 0;
  for (const study::BatchSpec& batch : spec.batches) {
    BatchForecast forecast{.batch_size = batch.batch_size, .num_trials = batch.num_trials, .train_steps = batch.train_steps};
    forecast.num_done = std::min(num_done(folder, batch.batch_size), batch.num_trials);
    const int64_t left = forecast.num_trials - forecast.num_done;
    forecast.num_steps = left * batch.train_steps;
    forecast.num_evaluations = left * static_cast<int64_t>(study::evaluation_steps(spec.evaluation_ratio, batch.train_steps).size());
    forecast.team = study::team_size(spec, batch.batch_size, num_workers);
    forecast.cost = runner->measure(batch.batch_size);
    // Workers beyond the number of trials are idle.
    const auto busy = static_cast<double>(std::max<int64_t>(1, std::min<int64_t>(num_workers, left * forecast.team)));
    forecast.hours = (static_cast<double>(forecast.num_steps) * forecast.cost.step_seconds +
                      static_cast<double>(forecast.num_evaluations) * forecast.cost.evaluation_seconds) /
                     busy / 3600;
    if (json) print_line(forecast);
    else print_row(forecast);
    all_trials += left;
    all_steps += forecast.num_steps;
    all_hours += forecast.hours;
  }
  if (json) {
    for (const std::string& sentence : spec.unknown) std::printf("%s\n", Json{{"event", "unknown"}, {"text", sentence}}.dump().c_str());
    const Json line{{"event", "total"}, {"trials", all_trials}, {"steps", all_steps}, {"hours", all_hours}, {"workers", num_workers}};
    std::printf("%s\n", line.dump().c_str());
    return;
  }
  std::printf("In all %s trials, %s steps, %s%s.\n", with_commas(all_trials).c_str(), with_commas(all_steps).c_str(),
              hours_text(all_hours).c_str(), spec.censor ? "; censoring usually saves most of it" : "");
  for (const std::string& sentence : spec.unknown) std::printf("Not known: %s\n", sentence.c_str());
}

}  // namespace cohort
