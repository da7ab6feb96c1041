// Gradients of the shares are summed in the order of the workers and applied once, as the ranks of a real run do it (docs/adr/0005).
//
// Time of a step: the slowest worker's computing, and a ring all-reduce of the weights' bytes over links of their own, each with the
// latency and rate of the server's in other modes: 2 (N - 1) messages of bytes / N one after the other. A worker that dies ends the job, as
// a lost rank does; it is restarted, and all that was done since the last checkpoint of this run is done again. Since the same steps give
// the same bits, only the clock is told of that, and the weights are not computed twice.
#include "cohort/async/simulated/step_rounds.h"

#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"

namespace cohort {
namespace {

constexpr int kDies = 0;  // The one kind of event here.
constexpr int kMostDeathsOfStep = 100'000;

/// Adds the gradients and, weighted, the buffers of one share to the sums of those before.
void add_share(const Ticket& ticket, const TicketResult& share, TicketResult& sum) {
  at::NoGradGuard no_grad;
  const bool is_first = sum.gradients.empty();
  sum.loss += share.loss;
  if (is_first) {
    sum.gradients = share.gradients;
    sum.buffers = share.buffers;
  }
  for (size_t i = 0; !is_first && i < share.gradients.size(); ++i) {
    if (!share.gradients[i].defined()) continue;
    if (sum.gradients[i].defined()) sum.gradients[i].add_(share.gradients[i]);
    else sum.gradients[i] = share.gradients[i];
  }
  const double weight = ticket.weight();
  for (size_t i = 0; i < share.buffers.size() && weight != 1; ++i) {
    if (!share.buffers[i].is_floating_point()) continue;
    if (is_first) sum.buffers[i].mul_(weight);
    else sum.buffers[i].add_(share.buffers[i], weight);
  }
}

}  // namespace

void StepRounds::begin() {
  for (int worker = 0; worker < parts_.spec.workers; ++worker)
    if (const auto seconds = parts_.clock.lifetime(worker)) parts_.clock.schedule(*seconds, kDies, worker);
}

std::vector<FlatPiece> StepRounds::saved_pieces() {
  since_checkpoint_seconds_ = 0;
  return {};
}

std::optional<AppliedPush> StepRounds::act() {
  const StepNumbers numbers = parts_.numbers();
  Work whole;
  TicketResult sum;
  std::vector<double> seconds(static_cast<size_t>(parts_.spec.workers), 0.0);
  parts_.mode->pull(whole);
  const double began = steady_seconds();
  for (int worker = 0; worker < parts_.spec.workers; ++worker) {
    const std::optional<Ticket> ticket = parts_.tickets.take(worker, 0);
    if (!ticket) break;  // The last step of an epoch may have fewer shares.
    add_share(*ticket, parts_.compute(*ticket, numbers.learning_rate), sum);
    seconds[static_cast<size_t>(worker)] = parts_.clock.work(worker, parts_.seconds_of(*ticket));
    whole.ticket = *ticket;
    parts_.accounts.push(worker, *ticket, {});
  }
  for (int share = 0; share <= whole.ticket.share; ++share) parts_.tickets.finish(parts_.tickets.ticket_of(whole.ticket.step, share));
  whole.ticket = {whole.ticket.step, 0, {0, whole.ticket.global_samples}, whole.ticket.global_samples};
  parts_.mode->worked(whole, std::move(sum), numbers);
  const double computed = steady_seconds();
  compute_seconds_ += computed - began;
  const PushOutcome outcome = parts_.mode->push(whole, numbers);
  push_seconds_ += steady_seconds() - computed;

  const double slowest = *std::max_element(seconds.begin(), seconds.end()), exchange = ring_seconds(parts_.mode->push_bytes());
  for (int worker = 0; worker < parts_.spec.workers; ++worker) {
    AsyncRecord::Worker& own = parts_.accounts.of(worker);
    own.computing_seconds += seconds[static_cast<size_t>(worker)];
    own.waiting_seconds += slowest - seconds[static_cast<size_t>(worker)];
    own.moving_seconds += exchange;
  }
  parts_.accounts.moved(0, ring_bytes(parts_.mode->push_bytes()));
  pass(slowest + exchange);
  return AppliedPush{whole.ticket, whole.loss, outcome};
}

/// The clock goes on by these seconds of work, and by what deaths cost meanwhile.
void StepRounds::pass(double seconds) {
  double left = seconds;
  for (int deaths = 0;; ++deaths) {
    const std::optional<double> next = parts_.clock.next_moment();
    if (!next || *next > parts_.clock.now() + left) break;
    if (deaths == kMostDeathsOfStep)
      fail(ErrorCode::kFailed, "after ", deaths, " deaths no step is complete: with ", parts_.spec.workers, " workers, one dies every ",
           parts_.spec.mtbf_seconds / parts_.spec.workers, " seconds, and ", since_checkpoint_seconds_ + seconds,
           name_settings(" seconds of work are done again each time; take a smaller --checkpoint-every, a larger mtbf, or fewer workers"));
    const double before = parts_.clock.now();
    const int worker = parts_.clock.next()->worker;
    ++parts_.accounts.of(worker).deaths;
    if (const bool is_down_already = *next < before; !is_down_already) {
      ++parts_.accounts.of(worker).lost;
      parts_.clock.advance(parts_.spec.restart_seconds);
      left = since_checkpoint_seconds_ + seconds;
    }
    if (const auto lifetime = parts_.clock.lifetime(worker)) parts_.clock.schedule(*lifetime, kDies, worker);
  }
  parts_.clock.advance(left);
  since_checkpoint_seconds_ += seconds;
}

}  // namespace cohort
