#pragma once
// A worker of an asynchronous training in a process of its own: it requests work, computes it on the version that comes with it, and pushes
// the result.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/async/async_mode.h"
#include "cohort/async/packed_tensors.h"
#include "cohort/async/ticket_work.h"
#include "cohort/data/tickets.h"
#include "cohort/job/job.h"
#include "cohort/job/specs/injected_faults.h"
#include "cohort/world/messages/message_client.h"

namespace cohort {

struct WorkOrder;

struct ServedWorkerOptions {
  int worker = 0;
  std::string configuration;  ///< Compared by the server with its own.
  Injection injection;
  double timeout_seconds = 60;
  std::function<void()> between_items;       ///< Called between work items, and every 50 ms while waiting; may be empty.
  std::function<void(int64_t step)> pushed;  ///< Called after each push with its step (from 1); may be empty.
  std::function<bool()> leaves;              ///< Whether to leave, asked between work items; may be empty.
};

/// Computes a work item on the version that was pulled.
using ComputeFunction = std::function<PushData(const WorkOrder&)>;

/// One thread.
class ServedWorker {
 public:
  /// `worker` must outlive it.
  ServedWorker(AsyncWorker& worker, ComputeFunction compute, MessageClient client, ServedWorkerOptions options);

  /// Works until the server ends the training; returns the reason, "" for a completed training or a worker that left. Reconnects if the
  /// connection breaks and discards the work at hand, which goes to another worker. Error(kEnvironment) if the server is gone. A failure
  /// here is reported to the server first.
  std::string run();

 private:
  struct ConnectionLost {};
  static constexpr double kPollSeconds = 0.05, kReconnectSeconds = 5;
  template <typename Call>
  auto with_connection(const Call& call);
  void connect(double timeout_seconds);
  void request_work();
  std::optional<std::string> handle_next_message();
  std::optional<std::string> final_message();
  void work(const WorkOrder& order, const std::string& data);
  bool is_leaving();
  void report_failure(int code, const std::string& text);

  AsyncWorker& worker_;
  ComputeFunction compute_;
  MessageClient client_;
  ServedWorkerOptions options_;
  WorkerSlot slot_;  // Of this connection; empty if tensors travel in the messages.
  int64_t num_pushes_ = 0;
  bool has_asked_to_leave_ = false;
  double idle_since_ = 0, last_send_seconds_ = 0;
};

/// Computes with `work`; all arguments must outlive the function. `total_steps`: of the run, for learning rates.
ComputeFunction make_compute_function(AsyncWorker& worker, const Tickets& queue, TicketWork& work, const Job& job, int64_t total_steps);

}  // namespace cohort
