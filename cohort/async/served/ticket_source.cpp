#include "cohort/async/served/ticket_source.h"

namespace cohort {

TicketSource ticket_source(WorkerSide& side, const Tickets& tickets, TicketWork& work, const Job& job, int64_t total_steps) {
  return [&side, &tickets, &work, &job, total_steps](const WorkOrder& order) {
    return side.work({.tickets = tickets,
                      .step = order.step,
                      .share = order.share,
                      .numbers = {order.learning_rate, job.config.clip_norm},
                      .rate_at = [&](int64_t step) { return job.learning_rate.at(step, total_steps); },
                      .compute = [&](const Ticket& ticket, double rate) { return work.compute(ticket, rate); }});
  };
}

}  // namespace cohort
