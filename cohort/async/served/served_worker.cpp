// One work item at a time: a version comes with the order, the push goes back, then the next order is requested. Nothing is kept between
// items except compression residuals, so a worker may die or reconnect at any time.
//
// Cost of an item: three small messages, and the model's bytes down and up: through shared memory (packed_tensors.h) if the server is on
// this host, else in the messages, which are encrypted and copied a few times more.
#include "cohort/async/served/served_worker.h"

#include <signal.h>

#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "cohort/async/packed_tensors.h"
#include "cohort/async/served/served_messages.h"
#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

class ServedWorker {
 public:
  ServedWorker(AsyncWorker& worker, ComputeFunction compute, MessageClient client, ServedWorkerOptions options)
      : worker_(worker), compute_(std::move(compute)), client_(std::move(client)), options_(std::move(options)) {}

  std::string run() {
    connect(options_.timeout_seconds);
    for (;;) {
      try {
        if (const std::optional<std::string> end = handle_next_message()) return *end;
      } catch (const ConnectionLost&) {
        if (const std::optional<std::string> end = final_message()) return *end;
        if (has_asked_to_leave_) return "";  // No server is left to release it.
        connect(kReconnectSeconds);
        worker_.reset();
      } catch (const std::exception& error) {
        const auto* own = dynamic_cast<const Error*>(&error);
        // Only an Error can mean that the training failed; anything else, such as memory exhaustion, is this worker's alone.
        report_failure(static_cast<int>(own ? own->code() : ErrorCode::kEnvironment), first_line(error.what()));
        throw;
      }
    }
  }

 private:
  struct ConnectionLost {};
  static constexpr double kPollSeconds = 0.05, kReconnectSeconds = 5;

  /// Throws ConnectionLost if the connection breaks in `call`; only that is a reason to reconnect.
  template <typename Call>
  auto with_connection(const Call& call) {
    try {
      return call();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kEnvironment || client_.was_dismissed()) throw;
      throw ConnectionLost();
    }
  }

  void connect(double timeout_seconds) {
    slot_ = {};
    client_.connect(timeout_seconds);
    client_.send({.text = encode(Hello{options_.worker, options_.configuration})});
    idle_since_ = steady_seconds();
  }

  void request_work() {
    with_connection([&] { client_.send({.text = encode(WorkRequest{static_cast<bool>(slot_)})}); });
    idle_since_ = steady_seconds();
  }

  std::optional<std::string> handle_next_message() {
    if (options_.between_items) options_.between_items();
    is_leaving();
    const std::optional<PeerMessage> message = with_connection([&] { return client_.receive(kPollSeconds); });
    if (!message) return std::nullopt;
    const std::string& where = client_.server_name();
    const Json json = parse_strict_ordered_json(message->text, {.path = where});
    if (is_message<TrainingEnd>(json)) return decode<TrainingEnd>(json, where).error;
    if (is_message<Welcome>(json)) {
      slot_ = WorkerSlot::find(decode<Welcome>(json, where).slot, worker_.pull_buffers(), worker_.empty_push());
      if (!is_leaving()) request_work();
    } else if (is_message<WorkOrder>(json)) {
      work(decode<WorkOrder>(json, where), message->data);
    } else {
      fail(ErrorCode::kFailed, where, " said ", quote_text(message_type(json, "do")), ", which is not understood");
    }
    return std::nullopt;
  }

  /// The training may have ended while this worker was computing: what the server sent before it left can still be read.
  std::optional<std::string> final_message() {
    try {
      while (const std::optional<PeerMessage> message = client_.receive(0)) {
        const Json json = parse_strict_ordered_json(message->text, {.path = client_.server_name()});
        if (is_message<TrainingEnd>(json)) return decode<TrainingEnd>(json, client_.server_name()).error;
      }
    } catch (const Error&) {
      // The server sent nothing.
    }
    return std::nullopt;
  }

  void work(const WorkOrder& order, const std::string& data) {
    const double received = steady_seconds();
    WorkDone done{.step = order.step, .share = order.share, .waiting_seconds = received - idle_since_};
    if (slot_) copy_tensors(worker_.pull_buffers(), slot_.down());
    else unpack(data, worker_.pull_buffers());
    if (num_pushes_ == 0 && options_.injection.pause_seconds > 0)
      std::this_thread::sleep_for(std::chrono::duration<double>(options_.injection.pause_seconds));
    if (num_pushes_ == options_.injection.kill_step) ::raise(SIGKILL);
    const double began = steady_seconds();
    const PushData result = compute_(order);
    const double computing = steady_seconds() - began;
    if (options_.injection.slow_factor > 1)
      std::this_thread::sleep_for(std::chrono::duration<double>(computing * (options_.injection.slow_factor - 1)));
    const double computed = steady_seconds();
    done.computing_seconds = computed - began;
    done.loss = result.loss;
    for (size_t i = 0; i < result.tensors.size(); ++i)
      if (!result.tensors[i].defined()) done.missing.push_back(i);
    std::string bytes;
    if (slot_) copy_tensors(slot_.up(), result.tensors);
    else bytes = packed_text(result.tensors);
    const double copied = steady_seconds();
    done.pushing_seconds = copied - computed + last_send_seconds_;
    done.moving_seconds = began - received + done.pushing_seconds;
    with_connection([&] { client_.send({.text = encode(done), .data = std::move(bytes)}, options_.timeout_seconds); });
    last_send_seconds_ = steady_seconds() - copied;
    ++num_pushes_;
    if (options_.pushed) options_.pushed(order.step + 1);
    if (options_.between_items) options_.between_items();  // Before requesting weights, which would become stale meanwhile.
    if (!is_leaving()) request_work();
  }

  /// Tells the server once. An order already on its way is still computed, so that no work is lost; the server then ends this worker.
  bool is_leaving() {
    if (has_asked_to_leave_ || !options_.leaves || !options_.leaves()) return has_asked_to_leave_;
    with_connection([&] { client_.send({.text = encode(LeaveRequest{})}); });
    return has_asked_to_leave_ = true;
  }

  void report_failure(int code, const std::string& text) {
    try {
      client_.send({.text = encode(WorkerFailure{code, text})});
    } catch (const Error&) {
      // The server is gone, which may be the failure itself.
    }
  }

  AsyncWorker& worker_;
  ComputeFunction compute_;
  MessageClient client_;
  ServedWorkerOptions options_;
  WorkerSlot slot_;  // Of this connection; empty if tensors travel in the messages.
  int64_t num_pushes_ = 0;
  bool has_asked_to_leave_ = false;
  double idle_since_ = 0, last_send_seconds_ = 0;
};

}  // namespace

std::string run_served_worker(AsyncWorker& worker, ComputeFunction compute, MessageClient client, ServedWorkerOptions options) {
  return ServedWorker(worker, std::move(compute), std::move(client), std::move(options)).run();
}

ComputeFunction make_compute_function(AsyncWorker& worker, const WorkQueue& queue, WorkItemRunner& work, const Job& job,
                                      int64_t total_steps) {
  return [&worker, &queue, &work, &job, total_steps](const WorkOrder& order) {
    return worker.work({.queue = queue,
                        .step = order.step,
                        .share = order.share,
                        .numbers = {order.learning_rate, job.config.clip_norm},
                        .rate_at = [&](int64_t step) { return job.learning_rate.at(step, total_steps); },
                        .compute = [&](const WorkItem& item, double rate) { return work.compute(item, rate); }});
  };
}

}  // namespace cohort
