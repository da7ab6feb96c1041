// The threads and connections of a study: on rank 0 a coordinator on a thread of its own beside the rank's worker, on the others a worker.
// Between them messages (world/messages/): a few hundred bytes a trial and the trial's measurements, whatever the model.

#include "cohort/trials/run_study.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/comm/rendezvous/store.h"
#include "cohort/data/source/source.h"
#include "cohort/study/noise/noisy_quadratic.h"
#include "cohort/trials/model_trial.h"
#include "cohort/trials/study_coordinator.h"
#include "cohort/trials/study_runner.h"
#include "cohort/trials/study_worker.h"
#include "cohort/world/messages/message_client.h"
#include "cohort/world/messages/message_server.h"
#include "cohort/world/stop.h"

namespace cohort {
namespace {

constexpr const char* kEndpointKey = "study/endpoint";

struct Meeting : ServerMeeting {
  c10::intrusive_ptr<c10d::Store> store;  ///< Rank 0's, until all have read it. A group made later meets over one of its own.
};

Meeting meeting_of(MessageListener listener) { return {meet_here(std::move(listener)), {}}; }

Meeting meet_over_store(const World& world, double timeout_seconds) {
  const auto store = make_store(world, timeout_seconds);
  Meeting meeting{meet_server(world, *store, kEndpointKey, timeout_seconds), {}};
  if (world.rank == 0) meeting.store = store;
  return meeting;
}

/// Of a job that this program started, whose ranks all have the listener: it is rank 0's.
Meeting meet_after_fork(MessageListener& listener, int rank) {
  Meeting meeting = meeting_of(std::move(listener));
  if (rank != 0) meeting.listener.reset();
  return meeting;
}

/// Runs the coordinator; its connections close when it ends, so that no worker waits for it.
class CoordinatorThread {
 public:
  CoordinatorThread(const study::StudySpec& spec, CoordinatorOptions options, MessageServer server)
      : thread_([this, &spec, options = std::move(options), server = std::move(server)]() mutable {
          try {
            StudyCoordinator coordinator(spec, std::move(options), std::move(server));
            try {
              code_ = coordinator.run();
            } catch (...) {
              failed_rank_ = coordinator.failed_rank();
              throw;
            }
          } catch (...) {
            error_ = std::current_exception();
          }
        }) {}
  ~CoordinatorThread() {
    if (thread_.joinable()) thread_.join();
  }
  /// What it returned or threw. A failure of another rank is that rank's to report.
  int join() {
    thread_.join();
    if (!error_) return code_;
    if (failed_rank_ <= 0) std::rethrow_exception(error_);
    try {
      std::rethrow_exception(error_);
    } catch (const std::exception& error) {
      fail(ErrorCode::kEnvironment, "the study was ended: ", error.what());
    }
  }
  int failed_rank() const { return failed_rank_; }

 private:
  int code_ = 0, failed_rank_ = -1;
  std::exception_ptr error_;
  std::thread thread_;  // Last: it uses the others.
};

}  // namespace

StudyWorkload open_study_workload(const study::StudySpec& spec) {
  if (spec.is_noisy_quadratic()) return {};
  // Not the study's seed: made-up data is the same for every seed of a study.
  const DataSet data =
      open_data(spec.data, {.context = spec.context, .image_size = spec.image_size, .validation_samples = spec.val_samples});
  auto samples = std::make_shared<const TrialData>(data, trial_data_options(spec));
  const int64_t num_train_samples = samples->train.num_samples();
  return {std::move(samples), num_train_samples};
}

std::unique_ptr<study::TrialRunner> make_study_runner(const study::StudySpec& spec, const StudyWorkload& workload, const Group& team,
                                                      double snapshot_seconds, std::function<bool()> stop) {
  if (spec.is_noisy_quadratic()) return study::make_noisy_quadratic_runner(spec);
  return make_model_runner(spec, workload.data, team, {.snapshot_seconds = snapshot_seconds, .stop = std::move(stop)});
}

int run_study(const study::StudySpec& spec, const StudyWorkload& workload, const World& world, const StudyRunOptions& options) {
  catch_stop_signals();
  std::optional<EndsSoonAtStop> ends;
  if (!options.listener && world.size > 1) ends.emplace();
  Meeting meeting = options.listener  ? meet_after_fork(*options.listener, world.rank)
                    : world.size == 1 ? meeting_of(MessageListener::for_forks())
                                      : meet_over_store(world, options.timeout);
  ends.reset();
  // Ranks of this program's own come, or their launcher says why not.
  const double join_seconds = options.listener ? std::max(options.timeout, 60.0) : options.timeout;
  const MessageLimits limits{.silence_seconds = options.timeout};
  std::optional<CoordinatorThread> coordinator;
  if (world.rank == 0)
    coordinator.emplace(spec,
                        CoordinatorOptions{.folder = options.folder,
                                           .num_ranks = world.size,
                                           .json = options.json,
                                           .quiet = options.quiet,
                                           .num_train_samples = workload.num_train_samples,
                                           .join_seconds = join_seconds,
                                           .timeout = options.timeout,
                                           .all_have_come = [&meeting] { meeting.store.reset(); }},
                        MessageServer(std::move(*meeting.listener), limits));
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
  if (coordinator) {
    // Where this rank itself failed the coordinator only repeats what it was told.
    try {
      code = coordinator->join();
    } catch (...) {
      if (!error || coordinator->failed_rank() != 0) throw;
    }
  }
  if (error) std::rethrow_exception(error);
  return code;
}

}  // namespace cohort
