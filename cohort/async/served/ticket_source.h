#pragma once
// What a worker does with a ticket: one forward and backward, or with local steps all of its steps, each an update of the worker's own.

#include <cstdint>

#include "cohort/async/async_mode.h"
#include "cohort/async/served/served_worker.h"
#include "cohort/async/ticket_work.h"
#include "cohort/data/tickets.h"
#include "cohort/job/job.h"

namespace cohort {

/// All of it must outlive the source. `total_steps`: of the run, for learning rates.
TicketSource ticket_source(WorkerSide& side, const Tickets& tickets, TicketWork& work, const Job& job, int64_t total_steps);

}  // namespace cohort
