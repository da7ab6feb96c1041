#pragma once
// A worker of an asynchronous training in a process of its own: it requests work, computes it on the version that comes with it, and pushes
// the result.

#include <cstdint>
#include <functional>
#include <string>

#include "cohort/async/async_mode.h"
#include "cohort/async/work_item_runner.h"
#include "cohort/data/work_queue.h"
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

/// Works until the server ends the training; returns the reason, "" for a completed training or a worker that left. Reconnects if the
/// connection breaks and discards the work at hand, which goes to another worker. Error(kEnvironment) if the server is gone. A failure here
/// is reported to the server first.
std::string run_served_worker(AsyncWorker& worker, ComputeFunction compute, MessageClient client, ServedWorkerOptions options);

/// Computes with `work`; all arguments must outlive the function. `total_steps`: of the run, for learning rates.
ComputeFunction make_compute_function(AsyncWorker& worker, const WorkQueue& queue, WorkItemRunner& work, const Job& job,
                                      int64_t total_steps);

}  // namespace cohort
