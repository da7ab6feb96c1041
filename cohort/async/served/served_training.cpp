// Rank 0 publishes its endpoint in the job's store; from then on each rank communicates with rank 0 only, so that no rank's end affects
// another's, except rank 0's. Rank 0 runs as a process of its own would, and alone saves.
#include "cohort/async/served/served_training.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cohort/async/async_training.h"
#include "cohort/async/packed_tensors.h"
#include "cohort/async/served/served_messages.h"
#include "cohort/async/served/served_run.h"
#include "cohort/async/served/served_worker.h"
#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/system/machine.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/comm/compute_threads.h"
#include "cohort/comm/rendezvous/store.h"
#include "cohort/comm/shm/memory_count.h"
#include "cohort/data/sampler.h"
#include "cohort/data/source/fingerprint.h"
#include "cohort/job/specs/sync_mode.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/train/check_run.h"
#include "cohort/train/initial_model.h"
#include "cohort/train/run_setup.h"
#include "cohort/world/job_token.h"
#include "cohort/world/process.h"
#include "cohort/world/status.h"
#include "cohort/world/stop.h"

namespace cohort {
namespace {

constexpr const char* kEndpointKey = "train/endpoint";
constexpr size_t kMaxUnauthenticated = 32;  ///< Few, so that files and checkpoints have descriptors left.
constexpr double kHeartbeatSeconds = 2;     ///< A suspended worker is lost after three of them.

/// The configuration that all ranks must share: without rank 0's folder and listening address.
std::string shared_configuration(const Config& config) {
  Config same = with_defaults(config);
  same.run.clear();
  same.listen.clear();
  return to_toml(same);
}

/// Limits for messages that carry the tensors of `pull_buffers`.
MessageLimits limits_for(const std::vector<at::Tensor>& pull_buffers, double timeout_seconds) {
  MessageLimits limits{
      .max_unauthenticated = kMaxUnauthenticated, .silence_seconds = timeout_seconds, .heartbeat_seconds = kHeartbeatSeconds};
  const size_t bytes = static_cast<size_t>(packed_bytes(pull_buffers)) + (size_t{1} << 20);
  limits.max_message_bytes = std::max(limits.max_message_bytes, bytes);
  limits.max_waiting_bytes = std::max(limits.max_waiting_bytes, 2 * bytes);
  return limits;
}

constexpr const char* kServerName = "rank 0, which serves the model,";

/// How a worker reaches rank 0, and its own name in messages.
struct Endpoint {
  std::string endpoint, secret, name;
};

MessageClient make_client(const Endpoint& endpoint, const MessageLimits& limits) {
  return MessageClient(endpoint.endpoint, endpoint.secret, {.name = endpoint.name, .server_name = kServerName, .limits = limits});
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? printable(name.data()) : "a host without a name";
}

std::optional<MessageListener> make_listener(const Config& config) {
  if (config.listen.empty()) return std::nullopt;
  const std::string token = job_token();
  if (token.empty())
    fail(ErrorCode::kBadInput, name_settings("--listen "), config.listen, " needs a secret that only processes that may join have; ",
         token_instructions());
  const HostAndPort at = parse_host_and_port(config.listen, name_settings("--listen"));
  MessageListener listener(token, at.host, at.port);
  log_info(concat("workers may join: cohort join ", listener.endpoint().substr(std::string("tcp://").size())));
  return listener;
}

TrainResult serve_all(const Job& job, const DataSet& data, const World& world, ServerAddress meeting, const TrainOptions& options) {
  Job own = job;
  own.layout.dp = 1;
  World alone = world;
  alone.size = alone.local_size = 1;
  TrainOptions how = options;
  how.num_served = world.size;
  RunSetup run(own, data, alone, how);
  use_compute_threads(num_rank_threads(run.config, world));
  const StatusPage status = world.status_fd >= 0 ? StatusPage::open(::dup(world.status_fd), world.size) : StatusPage();
  // False for a rank that was killed or suspended before it connected; nothing is known about ranks on other hosts.
  const auto may_connect = [&](int worker) {
    const int pid = status ? status[worker].pid.load() : 0;
    return pid == 0 || std::string("RSD").find(process_state(pid)) != std::string::npos;
  };
  const auto connect = [&](const std::vector<at::Tensor>& tensors) {
    const MessageLimits limits = limits_for(tensors, job.config.timeout);
    return std::pair(MessageServer(std::move(*meeting.listener), limits),
                     make_client({meeting.endpoint, meeting.secret, "rank 0"}, limits));
  };
  return serve_run(run,
                   {.applied = {},
                    .configuration = shared_configuration(job.config),
                    .fingerprint = job.config.listen.empty() ? "" : data_fingerprint(data),
                    .num_workers = world.size,
                    .may_connect = may_connect},
                   connect);
}

struct WorkerIdentity {
  int worker = 0;
  int num_shares = 1;         // Into which a step is cut.
  std::string configuration;  // Rank 0's.
};

/// A worker's whole training. `leaves`: see ServedWorkerOptions.
void run_worker(const Job& job, const DataSet& data, const WorkerIdentity& identity, const Endpoint& endpoint,
                const std::function<void(int64_t step)>& pushed, const std::function<bool()>& leaves = {}) {
  const Config config = with_defaults(job.config);
  if (config.memory_limit > 0) limit_memory(config.memory_limit);
  const std::shared_ptr<LayerGraph> model = initial_model_without_weights(config, data.train->shape()).model;
  check_model(job.config, job.layout, *model);
  const int64_t total_steps = num_run_steps(job, data.train->num_samples());
  const WorkQueue queue(
      work_queue_options(config, *data.train, *model, total_steps, identity.num_shares, name_settings("--workers "), job.layout.sync));
  const std::unique_ptr<TeacherAnswers> teacher = teacher_answers({.config = config,
                                                                   .data = data,
                                                                   .samples_of_run = total_steps * config.global_batch,
                                                                   .pipelines = identity.num_shares,
                                                                   .place = identity.worker,
                                                                   .size = identity.num_shares,
                                                                   .has_loader = false});
  WorkItemRunner work_item_runner(job, *data.train, *model, teacher.get());
  const std::unique_ptr<AsyncWorker> worker = make_async_worker(*model, job);
  const std::string why = run_served_worker(*worker, make_compute_function(*worker, queue, work_item_runner, job, total_steps),
                                            make_client(endpoint, limits_for(worker->pull_buffers(), job.config.timeout)),
                                            {.worker = identity.worker,
                                             .configuration = identity.configuration,
                                             .injection = injection_for_rank(job.faults, identity.worker),
                                             .timeout_seconds = config.timeout,
                                             .pushed = pushed,
                                             .leaves = leaves});
  if (!why.empty()) fail(ErrorCode::kEnvironment, "the training was ended: ", why);
}

void run_worker_rank(const Job& job, const DataSet& data, const World& world, const Endpoint& endpoint) {
  use_compute_threads(num_rank_threads(with_defaults(job.config), world));
  StatusPage status;
  if (world.status_fd >= 0) {
    status = StatusPage::open(::dup(world.status_fd), world.size);
    count_steps(status[world.rank]);
  }
  run_worker(job, data, {world.rank, world.size, shared_configuration(job.config)}, endpoint, [&](int64_t step) {
    if (status) status[world.rank].last_step = step;
  });
}

/// The training's answer to a process that is no worker yet; none if the training is over.
template <typename Answer, typename Message>
std::optional<Answer> query(const Message& message, MessageClient& client, const JoinRequest& request) {
  client.connect(request.timeout_seconds);
  client.send({.text = encode(message)});
  const std::optional<PeerMessage> answer = client.receive(request.timeout_seconds);
  if (!answer)
    fail(ErrorCode::kEnvironment, "join: ", request.address, " said nothing within ", request.timeout_seconds, " s; is a training there?");
  const Json json = parse_strict_ordered_json(answer->text, {.path = request.address});
  if (is_message<TrainingEnd>(json)) return std::nullopt;
  return decode<Answer>(json, request.address);
}

}  // namespace

TrainResult train_served(const Job& job, const DataSet& data, const World& world, const TrainOptions& options) {
  return train_served(job, data, world, next_group_store(world, job.config.timeout), options);
}

TrainResult train_served(const Job& job, const DataSet& data, const World& world, const c10::intrusive_ptr<c10d::Store>& store,
                         const TrainOptions& options) {
  std::optional<MessageListener> own = world.rank == 0 ? make_listener(job.config) : std::nullopt;
  ServerAddress meeting = share_server_address(world, *store, kEndpointKey, job.config.timeout, std::move(own));
  if (world.rank == 0) return serve_all(job, data, world, std::move(meeting), options);
  run_worker_rank(job, data, world, {meeting.endpoint, meeting.secret, concat("rank ", world.rank)});
  return {};
}

int64_t join_training(const JoinRequest& request, const std::function<DataSet(const Config&)>& open) {
  const double began = steady_seconds();
  const std::string token = job_token();
  if (token.empty())
    fail(ErrorCode::kBadInput, "join: no secret; only processes with that of the training may join: ", token_instructions());
  const HostAndPort at = parse_host_and_port(request.address, "join:");
  if (at.port == 0)
    fail(ErrorCode::kBadInput, "join: ", request.address, ": nobody listens at port 0; the training logged its port when it started");
  Endpoint endpoint{
      .endpoint = tcp_endpoint(at.host, at.port), .secret = token, .name = concat("process ", ::getpid(), " of ", host_name())};
  log_info(concat("asking ", request.address, " for at most ", request.timeout_seconds, " s"));
  const auto new_client = [&] { return make_client(endpoint, {.silence_seconds = request.timeout_seconds}); };
  MessageClient asking = new_client();
  const std::optional<JoinInfo> info = query<JoinInfo>(JoinQuery{}, asking, request);
  if (!info) return 0;  // The training has ended.
  asking.close();
  Config config;
  read_config_text(info->configuration, "the configuration of " + request.address, config);
  if (!request.data.empty()) config.data = request.data;
  const DataSet data = open(config);
  if (const std::string mine = data_fingerprint(data); mine != info->fingerprint)
    fail(ErrorCode::kBadInput, "join: ", config.data, " here are other data than those of the training (fingerprint ", mine, ", there ",
         info->fingerprint, name_settings("); name the same with --data"));
  use_compute_threads(request.threads > 0 ? request.threads : config.threads > 0 ? config.threads : num_usable_cores());
  MessageClient joining = new_client();  // Kept until the first push, so that the training notices if this process dies before.
  const std::optional<WorkerNumber> number = query<WorkerNumber>(JoinReady{}, joining, request);
  if (!number) return 0;
  endpoint.name = concat("worker ", number->worker);
  log_info(concat("joined as worker ", number->worker, ": ", config.model, " on ", config.data, ", ", config.layout));
  int64_t num_pushes = 0;
  try {
    catch_first_stop_signal();  // The first leaves after the current work item, the second ends the process.
    const auto pushed = [&](int64_t) {
      if (num_pushes++ > 0) return;
      log_info(concat("first push ", human_seconds(steady_seconds() - began), " after it asked to join"));
      joining.close();
    };
    run_worker(resolve(config, info->num_shares), data, {number->worker, info->num_shares, info->configuration}, endpoint, pushed,
               stop_requested);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // LibTorch's, with stack frames.
    fail(ErrorCode::kEnvironment, "worker ", number->worker, " can not go on: ", first_line(error.what()));
  }
  return num_pushes;
}

}  // namespace cohort
