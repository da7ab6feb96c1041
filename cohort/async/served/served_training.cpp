// Rank 0 says in the job's store where it is to be met; from then on ranks talk to it alone, so that no rank's end is another's, but rank
// 0's. It makes its run as a process of its own would, and saves alone.
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
#include "cohort/async/served/served_run.h"
#include "cohort/async/served/served_worker.h"
#include "cohort/async/simulated/clock_only.h"
#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/system/machine.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/comm/compute_threads.h"
#include "cohort/comm/rendezvous/store.h"
#include "cohort/comm/shm/memory_count.h"
#include "cohort/data/sampler.h"
#include "cohort/data/source/fingerprint.h"
#include "cohort/job/learning_rate.h"
#include "cohort/job/specs/sync_mode.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/train/check_run.h"
#include "cohort/train/initial_model.h"
#include "cohort/train/run_folder.h"
#include "cohort/train/run_setup.h"
#include "cohort/world/job_token.h"
#include "cohort/world/process.h"
#include "cohort/world/status.h"
#include "cohort/world/stop.h"

namespace cohort {
namespace {

constexpr const char* kEndpointKey = "train/endpoint";
constexpr size_t kMostStrangers = 32;    ///< Few, so that files and checkpoints have descriptors left.
constexpr double kHeartbeatSeconds = 2;  ///< A worker that is stopped is lost after three of them.

/// Rank 0's folder, and where it listens, are its own affair.
std::string configuration_of(const Config& config) {
  Config same = with_defaults(config);
  same.run.clear();
  same.listen.clear();
  return to_toml(same);
}

/// `pulled`: what a message may carry.
MessageLimits limits_for(const std::vector<at::Tensor>& pulled, double timeout_seconds) {
  MessageLimits limits{.max_strangers = kMostStrangers, .silence_seconds = timeout_seconds, .heartbeat_seconds = kHeartbeatSeconds};
  const size_t bytes = static_cast<size_t>(packed_bytes(pulled)) + (size_t{1} << 20);
  limits.max_message_bytes = std::max(limits.max_message_bytes, bytes);
  limits.max_waiting_bytes = std::max(limits.max_waiting_bytes, 2 * bytes);
  return limits;
}

constexpr const char* kServerName = "rank 0, which serves the model,";

/// Where rank 0 is to be met, and what a worker calls itself there.
struct Meeting {
  std::string endpoint, secret, name;
};

MessageClient client_of(const Meeting& meeting, const MessageLimits& limits) {
  return MessageClient(meeting.endpoint, meeting.secret, {.name = meeting.name, .server_name = kServerName, .limits = limits});
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? printable(name.data()) : "a host without a name";
}

std::optional<MessageListener> listener_of(const Config& config) {
  if (config.listen.empty()) return std::nullopt;
  const std::string token = job_token();
  if (token.empty())
    fail(ErrorCode::kBadInput, name_settings("--listen "), config.listen, " needs a secret, which only those have who may join; ",
         how_to_give_a_token());
  const HostAndPort at = parse_host_and_port(config.listen, name_settings("--listen"));
  MessageListener listener(token, at.host, at.port);
  log_info(concat("workers may join: cohort join ", listener.endpoint().substr(std::string("tcp://").size())));
  return listener;
}

TrainResult serve_all(const Job& job, const DataSet& data, const World& world, ServerMeeting meeting, const TrainOptions& options) {
  Job own = job;
  own.layout.dp = 1;
  World alone = world;
  alone.size = alone.local_size = 1;
  TrainOptions how = options;
  how.num_served = world.size;
  RunSetup run(own, data, alone, how);
  use_compute_threads(threads_of_rank(run.config, world));
  const StatusPage status = world.status_fd >= 0 ? StatusPage::open(::dup(world.status_fd), world.size) : StatusPage();
  // One that was killed or stopped before it said who it is; of ranks on other hosts nobody here knows.
  const auto may_come = [&](int worker) {
    const int pid = status ? status[worker].pid.load() : 0;
    return pid == 0 || std::string("RSD").find(process_state(pid)) != std::string::npos;
  };
  ServedRun served(run, world.size, may_come);
  if (!job.config.listen.empty()) served.let_join(data_fingerprint(data));
  RunSaver saver(run);
  begin_run(run);
  RunReporter reporter(run, saver, clock_only_pace);
  const MessageLimits limits = limits_for(served.served(), job.config.timeout);
  MessageServer server(std::move(*meeting.listener), limits);
  return served.train(std::move(server), client_of({meeting.endpoint, meeting.secret, "rank 0"}, limits), configuration_of(job.config),
                      saver, reporter);
}

/// Which worker of a training this is.
struct Part {
  int worker = 0;
  int num_shares = 1;         // That a step is cut into.
  std::string configuration;  // As rank 0 has it.
};

/// A worker's whole training. `leaves`: whether it is to go, or empty for never.
void work_for(const Job& job, const DataSet& data, const Part& part, const Meeting& meeting,
              const std::function<void(int64_t step)>& pushed, const std::function<bool()>& leaves = {}) {
  const Config config = with_defaults(job.config);
  if (config.memory_limit > 0) limit_memory(config.memory_limit);
  const std::shared_ptr<LayerGraph> model = initial_model_without_weights(config, data.train->shape()).model;
  check_model(job.config, job.layout, *model);
  const int64_t total_steps = steps_of_run(job, data.train->num_samples());
  const Tickets tickets(
      ticket_options(config, *data.train, *model, total_steps, part.num_shares, name_settings("--workers "), job.layout.sync));
  const std::unique_ptr<TeacherAnswers> teacher = teacher_answers({.config = config,
                                                                   .data = data,
                                                                   .samples_of_run = total_steps * config.global_batch,
                                                                   .pipelines = part.num_shares,
                                                                   .place = part.worker,
                                                                   .size = part.num_shares,
                                                                   .has_loader = false});
  TicketWork ticket_work(job, *data.train, *model, teacher.get());
  const std::unique_ptr<WorkerSide> side = make_worker_side(*model, job);
  ServedWorker served(*side, ticket_source(*side, tickets, ticket_work, job, total_steps),
                      client_of(meeting, limits_for(side->pulled(), job.config.timeout)),
                      {.worker = part.worker,
                       .hello = part.configuration,
                       .injection = injection_for_rank(job.faults, part.worker),
                       .timeout_seconds = config.timeout,
                       .pushed = pushed,
                       .leaves = leaves});
  const std::string why = served.run();
  if (!why.empty()) fail(ErrorCode::kEnvironment, "the training was ended: ", why);
}

void work_as_rank(const Job& job, const DataSet& data, const World& world, const Meeting& meeting) {
  use_compute_threads(threads_of_rank(with_defaults(job.config), world));
  StatusPage status;
  if (world.status_fd >= 0) {
    status = StatusPage::open(::dup(world.status_fd), world.size);
    count_steps(status[world.rank]);
  }
  work_for(job, data, {world.rank, world.size, configuration_of(job.config)}, meeting, [&](int64_t step) {
    if (status) status[world.rank].last_step = step;
  });
}

/// What the training says, over `client`, to one that wants to join and is no worker yet; none where it is over.
std::optional<Json> answer_to(WorkerWord word, MessageClient& client, const JoinRequest& request) {
  client.connect(request.timeout_seconds);
  client.send({.text = to_json(word).dump()});
  const std::optional<PeerMessage> answer = client.receive(request.timeout_seconds);
  if (!answer)
    fail(ErrorCode::kEnvironment, "join: ", request.address, " said nothing within ", request.timeout_seconds, " s; is a training there?");
  Json said = parse_strict_ordered_json(answer->text, {.path = request.address});
  if (server_word(said) == ServerWord::kEnd) return std::nullopt;
  return said;
}

}  // namespace

TrainResult train_served(const Job& job, const DataSet& data, const World& world, const TrainOptions& options) {
  return train_served(job, data, world, next_group_store(world, job.config.timeout), options);
}

TrainResult train_served(const Job& job, const DataSet& data, const World& world, const c10::intrusive_ptr<c10d::Store>& store,
                         const TrainOptions& options) {
  std::optional<MessageListener> own = world.rank == 0 ? listener_of(job.config) : std::nullopt;
  ServerMeeting meeting = meet_server(world, *store, kEndpointKey, job.config.timeout, std::move(own));
  if (world.rank == 0) return serve_all(job, data, world, std::move(meeting), options);
  work_as_rank(job, data, world, {meeting.endpoint, meeting.secret, concat("rank ", world.rank)});
  return {};
}

int64_t join_training(const JoinRequest& request, const std::function<DataSet(const Config&)>& open) {
  const double began = steady_seconds();
  const std::string token = job_token();
  if (token.empty())
    fail(ErrorCode::kBadInput, "join: no secret, and only those may join who have that of the training; ", how_to_give_a_token());
  const HostAndPort at = parse_host_and_port(request.address, "join:");
  if (at.port == 0)
    fail(ErrorCode::kBadInput, "join: ", request.address, ": port 0 is where nobody listens; the training said which it is");
  const bool is_number = at.host.find(':') != std::string::npos;
  Meeting meeting{.endpoint = concat("tcp://", is_number ? "[" : "", at.host, is_number ? "]" : "", ":", at.port),
                  .secret = token,
                  .name = concat("process ", ::getpid(), " of ", host_name())};
  log_info(concat("asking ", request.address, " for at most ", request.timeout_seconds, " s"));
  const auto door = [&] { return client_of(meeting, {.silence_seconds = request.timeout_seconds}); };
  MessageClient asking = door();
  const std::optional<Json> what = answer_to(WorkerWord::kJoins, asking, request);
  if (!what) return 0;  // Over before it began.
  asking.close();
  const Joining joining = joining_from(*what, request.address);
  Config config;
  read_config_text(joining.configuration, "the configuration of " + request.address, config);
  if (!request.data.empty()) config.data = request.data;
  const DataSet data = open(config);
  if (const std::string mine = data_fingerprint(data); mine != joining.fingerprint)
    fail(ErrorCode::kBadInput, "join: ", config.data, " here are other data than those of the training (fingerprint ", mine, ", there ",
         joining.fingerprint, name_settings("); name the same with --data"));
  use_compute_threads(request.threads > 0 ? request.threads : config.threads > 0 ? config.threads : num_usable_cores());
  MessageClient entering = door();  // Open until it works: were it lost before, the training would not know.
  const std::optional<Json> number = answer_to(WorkerWord::kReady, entering, request);
  if (!number) return 0;
  const int worker = numbered_from(*number, request.address).worker;
  meeting.name = concat("worker ", worker);
  log_info(concat("joined as worker ", worker, ": ", config.model, " on ", config.data, ", ", config.layout));
  int64_t num_pushes = 0;
  try {
    catch_first_stop_signal();  // It leaves after the ticket that it has; the second ends it.
    const auto pushed = [&](int64_t) {
      if (num_pushes++ > 0) return;
      log_info(concat("first push ", human_seconds(steady_seconds() - began), " after it asked to join"));
      entering.close();
    };
    work_for(resolve(config, joining.num_shares), data, {worker, joining.num_shares, joining.configuration}, meeting, pushed,
             stop_requested);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // LibTorch's, with the frames of its stack.
    fail(ErrorCode::kEnvironment, "worker ", worker, " can not go on: ", first_line(error.what()));
  }
  return num_pushes;
}

}  // namespace cohort
