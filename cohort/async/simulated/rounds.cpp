// Gradients of the shares are summed in the order of the workers and applied once, as the ranks of a real run do it (docs/adr/0005).
//
// Time of a step: the slowest worker's computing, and a ring all-reduce of the weights' bytes over links of their own, each with the
// latency and rate of the server's in other modes: 2 (N - 1) messages of bytes / N one after the other. A worker that dies ends the job, as
// a lost rank does; it is restarted, and all that was done since the last checkpoint of this run is done again. Since the same steps give
// the same bits, only the clock is told of that, and the weights are not computed twice.
#include "cohort/async/simulated/virtual_driver.h"

#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"

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

// Time of a round: the slowest worker's computing of its H shares, and one exchange of the weights' bytes as a ring: 2 (N - 1) messages of
// bytes / N one after the other, each with the link's latency and rate. Workers that are restarting when a round begins have no part in it,
// and nobody waits for them. One that dies in a round takes what it learnt in it along: its share of the samples counts 0 and is not
// trained on again; it comes back, after the restart, with the weights of the round that begins then and an optimizer that knows nothing.
// That is what is published of DiLoCo ("robust to workers that leave", Douillard et al. 2023, 3.2), and more than real workers of this
// program do: there a lost worker ends the training.
//
// With F fragments a round has F parts, each of its steps up to the exchange of one fragment, which is waited for; all of this holds for a
// part then. The bytes of a round are the same, the largest exchange has an F-th of them, and there are F times as many latencies.
//
// Only workers that end the round are computed, one after the other.

namespace {

enum Happens { kWorkerDies, kWorkerIsBack };
constexpr int kMostRoundsInVain = 100'000;

}  // namespace

int64_t LocalRounds::Part::num_samples() const {
  int64_t samples = 0;
  for (const Ticket& ticket : tickets) samples += ticket.num_samples();
  return samples;
}

void LocalRounds::begin() {
  for (int worker = 0; worker < parts_.spec.workers; ++worker)
    if (const auto seconds = parts_.clock.lifetime(worker)) parts_.clock.schedule(*seconds, kWorkerDies, worker);
}

/// The tickets of the next steps, each worker's own share of each.
std::vector<LocalRounds::Part> LocalRounds::take_parts(int64_t steps) {
  std::vector<Part> parts(static_cast<size_t>(parts_.spec.workers));
  for (int64_t step = 0; step < steps; ++step) {
    std::vector<Ticket> of_step;
    for (int worker = 0; worker < parts_.spec.workers; ++worker) {
      const std::optional<Ticket> ticket = parts_.tickets.take(worker, 0);
      if (!ticket) break;  // The last step of an epoch may have fewer shares.
      of_step.push_back(*ticket);
      parts[static_cast<size_t>(worker)].tickets.push_back(*ticket);
    }
    for (const Ticket& ticket : of_step) parts_.tickets.finish(ticket);  // So that the next step's can be taken.
  }
  return parts;
}

/// What happens up to that moment: who dies loses its part, who comes back has one from the next round on.
void LocalRounds::live_until(double moment, std::vector<Part>& parts) {
  while (parts_.clock.next_moment() && *parts_.clock.next_moment() <= moment) {
    const VirtualEvent event = *parts_.clock.next();
    if (event.kind == kWorkerIsBack) {
      absent_.erase(event.worker);
      models_.forget(event.worker);
      if (const auto seconds = parts_.clock.lifetime(event.worker)) parts_.clock.schedule(*seconds, kWorkerDies, event.worker);
      continue;
    }
    absent_.insert(event.worker);
    Part& part = parts[static_cast<size_t>(event.worker)];
    ++parts_.accounts.of(event.worker).deaths;
    part.ends = false;
    parts_.clock.schedule(parts_.spec.restart_seconds, kWorkerIsBack, event.worker);
  }
  parts_.clock.advance(moment - parts_.clock.now());
}

/// Until the slowest that ends its part has done so; its seconds.
double LocalRounds::live(std::vector<Part>& parts) {
  double slowest = 0;
  for (int tries = 0;; ++tries) {
    if (tries == kMostRoundsInVain)
      fail(ErrorCode::kFailed, "in ", tries, " rounds no worker lived to the exchange: with one death every ", parts_.spec.mtbf_seconds,
           name_settings(" seconds of a worker's life take a larger mtbf, or exchange more often"));
    slowest = 0;
    for (int worker = 0; worker < parts_.spec.workers; ++worker) {
      Part& part = parts[static_cast<size_t>(worker)];
      part.ends = !absent_.contains(worker);
      part.seconds = 0;
      for (const Ticket& ticket : part.tickets)
        if (part.ends) part.seconds += parts_.clock.work(worker, parts_.seconds_of(ticket));
      slowest = std::max(slowest, part.seconds);
    }
    // Nobody here: until the first is back.
    const bool all_absent = std::ssize(absent_) == parts_.spec.workers;
    live_until(all_absent ? *parts_.clock.next_moment() : parts_.clock.now() + slowest, parts);
    if (std::any_of(parts.begin(), parts.end(), [](const Part& part) { return part.ends && !part.tickets.empty(); })) return slowest;
  }
}

/// What the workers that end their parts learn in them, and the exchange.
void LocalRounds::compute(int fragment, const std::vector<Part>& parts, Round& round) {
  std::vector<std::optional<int64_t>> samples;
  for (const Part& part : parts) {
    samples.push_back(part.ends ? std::optional(part.num_samples()) : std::nullopt);
    round.trained += samples.back().value_or(0);
  }
  const double began = steady_seconds();
  const StepNumbers numbers = parts_.numbers();
  models_.begin_part(fragment, samples);
  for (int worker = 0; worker < parts_.spec.workers; ++worker) {
    const Part& part = parts[static_cast<size_t>(worker)];
    // Of those without samples in this part what they did in those before may count.
    if (!part.ends || (part.tickets.empty() && models_.num_fragments() == 1)) continue;
    models_.begin(worker);
    for (const Ticket& ticket : part.tickets) {
      const StepNumbers own{parts_.rate_of(ticket.step), numbers.clip_norm};
      TicketResult result = parts_.compute(ticket, own.learning_rate);
      round.loss += result.loss * static_cast<double>(ticket.global_samples);
      round.gradient_norm = models_.step(worker, ticket, result, own);
      parts_.accounts.push(worker, ticket, {});
    }
    models_.end(worker);
  }
  const double computed = steady_seconds();
  compute_seconds_ += computed - began;
  models_.end_part();
  push_seconds_ += steady_seconds() - computed;
}

void LocalRounds::act_part(int fragment, int64_t steps, Round& round) {
  std::vector<Part> parts = take_parts(steps);
  const double slowest = live(parts);
  compute(fragment, parts, round);
  const int64_t bytes = models_.exchanged_bytes(fragment);
  const double exchange = ring_seconds(bytes);
  for (int worker = 0; worker < parts_.spec.workers; ++worker) {
    const Part& part = parts[static_cast<size_t>(worker)];
    AsyncRecord::Worker& account = parts_.accounts.of(worker);
    if (!part.ends) {
      account.lost += std::ssize(part.tickets);  // Of who died, and of who was away: nobody trains on them.
      continue;
    }
    account.computing_seconds += part.seconds;
    account.waiting_seconds += slowest - part.seconds;
    account.moving_seconds += exchange;
  }
  parts_.accounts.moved(0, ring_bytes(bytes));
  parts_.clock.advance(exchange);
  const std::vector<Ticket>& any =
      std::find_if(parts.begin(), parts.end(), [](const Part& part) { return !part.tickets.empty(); })->tickets;
  for (const Ticket& ticket : any) round.asked += ticket.global_samples;  // Trained on or not.
  round.steps += std::ssize(any);
  round.last_step = any.back().step;
}

std::optional<AppliedPush> LocalRounds::act() {
  Round round;
  int64_t done = 0;
  for (int fragment = 0; fragment < models_.num_fragments(); ++fragment) {
    const int64_t until = step_of_fragment(fragment, models_.num_fragments(), steps_);
    act_part(fragment, until - done, round);
    done = until;
  }
  AppliedPush push{.ticket = {round.last_step, 0, {0, round.trained}, round.asked / round.steps}};
  push.loss = round.loss / static_cast<double>(round.trained) * push.ticket.weight();
  push.outcome.gradient_norm = round.gradient_norm;
  return push;
}

Json LocalRounds::state() const { return Json{{"absent", absent_}}; }

std::vector<FlatPiece> LocalRounds::loaded_pieces(const Json& state, const std::string& where) {
  const Json absent = state.is_object() ? state.value("absent", Json()) : Json();
  if (!absent.is_array()) fail(ErrorCode::kBadInput, where, ": the state of the workers is damaged");
  absent_.clear();
  for (const Json& worker : absent) {
    if (!worker.is_number_unsigned() || worker.get<uint64_t>() >= static_cast<uint64_t>(parts_.spec.workers))
      fail(ErrorCode::kBadInput, where, ": there is no worker ", worker.dump().substr(0, 40));
    absent_.insert(worker.get<int>());
  }
  return {};
}

}  // namespace cohort
