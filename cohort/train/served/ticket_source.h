#pragma once
// What a worker does with a ticket: one forward and backward, or with local steps all of its steps, each an update of the worker's own.

#include <cstdint>

#include "cohort/data/tickets.h"
#include "cohort/job/job.h"
#include "cohort/train/async/async_mode.h"
#include "cohort/train/async/ticket_work.h"
#include "cohort/train/served/served_worker.h"

namespace cohort {

/// All of it must outlive the source. `total_steps`: of the run, for learning rates.
TicketSource ticket_source(WorkerSide& side, const Tickets& tickets, TicketWork& work, const Job& job, int64_t total_steps);

}  // namespace cohort
