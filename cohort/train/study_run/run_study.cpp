// The threads and links of a study: on rank 0 a coordinator on a thread of its own beside the rank's worker, on the others a worker.
// Between them lines of text (world/message_link.h): a few hundred bytes a trial and the trial's measurements, whatever the model.

#include "cohort/train/study_run/run_study.h"

#include <exception>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/comm/rendezvous/store.h"
#include "cohort/data/source.h"
#include "cohort/study/noise/noisy_quadratic.h"
#include "cohort/train/study_run/model_trial.h"
#include "cohort/train/study_run/study_coordinator.h"
#include "cohort/train/study_run/study_runner.h"
#include "cohort/train/study_run/study_worker.h"
#include "cohort/world/stop.h"

namespace cohort {
namespace {

constexpr const char* kTicketKey = "study/ticket";

/// The links of a job that something else started. The store is let go at the end: a group made later meets over one of its own.
LinkPairs::Ends connect_ranks(const World& world, double timeout_seconds) {
  LinkPairs::Ends ends = LinkPairs(1).take(0);
  if (world.size == 1) return ends;
  const auto store = make_store(world, timeout_seconds);
  if (world.rank == 0) {
    LinkListener listener(world.local_size == world.size ? "127.0.0.1" : world.master_address);
    const std::string ticket = listener.ticket();
    store->set(kTicketKey, std::vector<uint8_t>(ticket.begin(), ticket.end()));
    for (MessageLink& link : listener.accept_ranks(world.size, timeout_seconds)) ends.to_workers.push_back(std::move(link));
    return ends;
  }
  std::vector<uint8_t> ticket;
  try {
    ticket = store->get(kTicketKey);
  } catch (const std::exception& error) {
    fail(ErrorCode::kEnvironment, "rank ", world.rank, " heard nothing from rank 0 within ", timeout_seconds,
         " s: ", first_line(error.what()));
  }
  ends.to_workers.clear();
  ends.to_coordinator = connect_link(std::string(ticket.begin(), ticket.end()), world.rank, timeout_seconds);
  return ends;
}

/// Runs the coordinator; its links close when it ends, so that no worker waits for it.
class CoordinatorThread {
 public:
  CoordinatorThread(const study::StudySpec& spec, CoordinatorOptions options, std::vector<MessageLink> links)
      : thread_([this, &spec, options = std::move(options), links = std::move(links)]() mutable {
          try {
            StudyCoordinator coordinator(spec, std::move(options), std::move(links));
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
  const DataSet data = open_data(spec.data, {.context = spec.context, .validation_samples = spec.val_samples});
  auto samples = std::make_shared<const TrialData>(data, spec.train_samples);
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
  LinkPairs::Ends ends = options.links ? options.links->take(world.rank) : connect_ranks(world, options.timeout);
  std::optional<CoordinatorThread> coordinator;
  if (world.rank == 0)
    coordinator.emplace(spec,
                        CoordinatorOptions{.folder = options.folder,
                                           .json = options.json,
                                           .quiet = options.quiet,
                                           .num_train_samples = workload.num_train_samples,
                                           .timeout = options.timeout},
                        std::move(ends.to_workers));
  StudyWorker worker(
      spec, world, {.backend = options.backend, .timeout = options.timeout},
      [&](const Group& team, std::function<bool()> stop) {
        return make_study_runner(spec, workload, team, options.snapshot_seconds, std::move(stop));
      },
      std::move(ends.to_coordinator));
  int code = 0;
  std::exception_ptr error;
  try {
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
