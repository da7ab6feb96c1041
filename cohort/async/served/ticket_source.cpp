#include "cohort/async/served/ticket_source.h"

#include <utility>

#include "cohort/async/local_server.h"

namespace cohort {

TicketSource ticket_source(WorkerSide& side, const Tickets& tickets, TicketWork& work, const Job& job, int64_t total_steps) {
  const double clip_norm = job.config.clip_norm;
  auto* const local = dynamic_cast<LocalWorker*>(&side);
  if (!local)
    return [&side, &tickets, &work, clip_norm](const WorkOrder& order) {
      const Ticket ticket = tickets.ticket_of(order.step, order.share);
      return side.hand_over(ticket, work.compute(ticket, order.learning_rate), {order.learning_rate, clip_norm});
    };
  return [local, &tickets, &work, &job, total_steps, clip_norm](const WorkOrder& order) {
    local->begin();
    for (const Ticket& ticket : tickets.steps_of(order.step, order.share)) {
      const double rate = job.learning_rate.at(ticket.step, total_steps);
      local->step(ticket, work.compute(ticket, rate), {rate, clip_norm});
    }
    TicketResult change = local->end();
    return HandedOver{.loss = change.loss, .tensors = handed_tensors(std::move(change))};
  };
}

}  // namespace cohort
