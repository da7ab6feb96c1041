// Rank 0 says in the job's store where it is to be met; from then on ranks talk to it alone, so that no rank's end is another's, but rank
// 0's. It makes its run as a process of its own would, and saves alone.
#include "cohort/train/served/served_training.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>

#include "cohort/base/cores.h"
#include "cohort/base/fail.h"
#include "cohort/comm/rendezvous/server_meeting.h"
#include "cohort/comm/rendezvous/store.h"
#include "cohort/comm/shm/memory_count.h"
#include "cohort/data/sampler.h"
#include "cohort/job/sync_mode.h"
#include "cohort/job/training/training_defaults.h"
#include "cohort/models/registry.h"
#include "cohort/train/async/async_run.h"
#include "cohort/train/run/check_run.h"
#include "cohort/train/run/run_folder.h"
#include "cohort/train/served/served_run.h"
#include "cohort/train/served/served_worker.h"
#include "cohort/world/process.h"
#include "cohort/world/status.h"

namespace cohort {
namespace {

constexpr const char* kEndpointKey = "train/endpoint";
constexpr double kHeartbeatSeconds = 2;  ///< A worker that is stopped is lost after three of them.

/// Rank 0's folder is its own affair.
std::string configuration_of(const Config& config) {
  Config same = with_defaults(config);
  same.run.clear();
  return to_toml(same);
}

MessageLimits limits_for(const LayerGraph& model, double timeout_seconds) {
  MessageLimits limits{.silence_seconds = timeout_seconds, .heartbeat_seconds = kHeartbeatSeconds};
  const auto bytes = static_cast<size_t>(ServedModel(model).num_bytes) + (size_t{1} << 20);
  limits.max_message_bytes = std::max(limits.max_message_bytes, bytes);
  limits.max_waiting_bytes = std::max(limits.max_waiting_bytes, 2 * bytes);
  return limits;
}

MessageClient client_of(const ServerMeeting& meeting, int rank, const MessageLimits& limits) {
  return MessageClient(meeting.endpoint, meeting.secret,
                       {.name = concat("rank ", rank), .server_name = "rank 0, which serves the model,", .limits = limits});
}

int threads_of(const Config& config, const World& world) { return config.threads > 0 ? config.threads : cores_of_rank(world); }

TrainResult serve_all(const Job& job, const DataSet& data, const World& world, ServerMeeting meeting, const TrainOptions& options) {
  Job own = job;
  own.layout.dp = 1;
  World alone = world;
  alone.size = alone.local_size = 1;
  TrainOptions how = options;
  how.num_served = world.size;
  RunSetup run(own, data, alone, how);
  at::set_num_threads(threads_of(run.config, world));
  const StatusPage status = world.status_fd >= 0 ? StatusPage::open(::dup(world.status_fd), world.size) : StatusPage();
  // One that was killed or stopped before it said who it is; of ranks on other hosts nobody here knows.
  const auto may_come = [&](int worker) {
    const int pid = status ? status[worker].pid.load() : 0;
    return pid == 0 || std::string("RSD").find(process_state(pid)) != std::string::npos;
  };
  ServedRun served(run, world.size, may_come);
  RunSaver saver(run);
  begin_run(run);
  RunReporter reporter(run, saver);
  const MessageLimits limits = limits_for(*run.model, run.config.timeout);
  MessageServer server(std::move(*meeting.listener), limits);
  return served.train(std::move(server), client_of(meeting, 0, limits), configuration_of(job.config), saver, reporter);
}

TrainResult work_for(const Job& job, const DataSet& data, const World& world, const ServerMeeting& meeting) {
  const Config config = with_defaults(job.config);
  at::set_num_threads(threads_of(config, world));
  if (config.memory_limit > 0) limit_memory(config.memory_limit);
  StatusPage status;
  if (world.status_fd >= 0) {
    status = StatusPage::open(::dup(world.status_fd), world.size);
    count_steps(status[world.rank]);
  }
  const std::shared_ptr<LayerGraph> model = build_model(config.model, data.train->shape(), config.seed);
  check_model(job.config, job.layout, *model);
  const Tickets tickets(
      ticket_options(config, *data.train, *model, steps_of_run(job, data.train->num_samples()), world.size, name_settings("--workers ")));
  TicketWork work(job, *data.train, *model);
  ServedWorker worker(*model,
                      [&](const WorkOrder& order) { return work.compute(tickets.ticket_of(order.step, order.share), order.learning_rate); },
                      client_of(meeting, world.rank, limits_for(*model, config.timeout)),
                      {.worker = world.rank,
                       .hello = configuration_of(job.config),
                       .injection = injection_for_rank(job.faults, world.rank),
                       .timeout_seconds = config.timeout,
                       .pushed = [&](int64_t step) {
                         if (status) status[world.rank].last_step = step;
                       }});
  const std::string why = worker.run();
  if (!why.empty()) fail(ErrorCode::kEnvironment, "the training was ended: ", why);
  return {};
}

}  // namespace

bool is_served(const Job& job) {
  const SyncKind kind = parse_sync(job.layout.sync).kind;
  return (kind == SyncKind::kAsync || kind == SyncKind::kStale) && job.config.virtual_time.empty();
}

TrainResult train_served(const Job& job, const DataSet& data, const World& world, const TrainOptions& options) {
  const auto store = next_group_store(world, job.config.timeout);
  ServerMeeting meeting = meet_server(world, *store, kEndpointKey, job.config.timeout);
  return world.rank == 0 ? serve_all(job, data, world, std::move(meeting), options) : work_for(job, data, world, meeting);
}

}  // namespace cohort
