// Synchronous workers under the virtual clock.
//
// StepRounds: gradients of the shares are summed in the order of the workers and applied once, as ranks do it (docs/adr/0005). Time of a
// step: the slowest worker's computing, and a ring all-reduce of the weights' bytes (VirtualDriver::ring_seconds()). A worker that dies
// ends the job, as a lost rank does; the job restarts and repeats everything since the last checkpoint of this run. Since the same steps
// give the same bits, only the clock repeats them; the weights are not computed twice.
//
// LocalRounds: time of a round is the slowest worker's computing of its H shares, and one ring exchange of the weights' bytes. Workers that
// are restarting when a round begins do not take part, and nobody waits for them. One that dies in a round loses what it learned in it: its
// share of the samples has weight 0 and is not trained on again; after the restart it returns with the weights of the round that begins
// then and a fresh optimizer. This is what is published of DiLoCo ("robust to workers that leave", Douillard et al. 2023, 3.2), and more
// than real workers of this program do: there a lost worker ends the training. With F fragments a round has F exchanges, each waited for,
// and all of this holds between two of them. The bytes of a round are the same, the largest exchange has an F-th of them, and there are F
// times as many latencies. Only workers that complete are computed, one after the other.
#include "cohort/async/simulated/virtual_driver.h"

#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <set>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/json_fields.h"

namespace cohort {
namespace {

constexpr int kMaxDeathsPerStep = 100'000, kMaxRoundAttempts = 100'000;

/// Adds the gradients and, weighted, the buffers of one share to `sum`.
void add_share(const WorkItem& item, const WorkResult& share, WorkResult& sum) {
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
  const double weight = item.weight();
  for (size_t i = 0; i < share.buffers.size() && weight != 1; ++i) {
    if (!share.buffers[i].is_floating_point()) continue;
    if (is_first) sum.buffers[i].mul_(weight);
    else sum.buffers[i].add_(share.buffers[i], weight);
  }
}

// ---- sync=step ----

class StepRounds : public VirtualDriver {
 public:
  explicit StepRounds(VirtualContext context) : VirtualDriver(std::move(context)) {}

  std::optional<AppliedPush> run_next() override {
    const StepNumbers numbers = context_.numbers();
    Assignment whole;
    WorkResult sum;
    std::vector<double> seconds(static_cast<size_t>(context_.spec.workers), 0.0);
    context_.mode->pull(whole);
    const double began = steady_seconds();
    for (int worker = 0; worker < context_.spec.workers; ++worker) {
      const std::optional<WorkItem> item = context_.queue.take(worker, 0);
      if (!item) break;  // The last step of an epoch may have fewer shares.
      add_share(*item, context_.compute(*item, numbers.learning_rate), sum);
      seconds[static_cast<size_t>(worker)] = context_.clock.work(worker, context_.item_seconds(*item));
      whole.item = *item;
      context_.statistics.add_push(worker, *item, {});
    }
    for (int share = 0; share <= whole.item.share; ++share) context_.queue.finish(context_.queue.item_at(whole.item.step, share));
    whole.item = {whole.item.step, 0, {0, whole.item.global_samples}, whole.item.global_samples};
    context_.mode->prepare_push(whole, std::move(sum), numbers);
    const double computed = steady_seconds();
    compute_seconds_ += computed - began;
    const PushOutcome outcome = context_.mode->push(whole, numbers);
    push_seconds_ += steady_seconds() - computed;

    const double slowest = *std::max_element(seconds.begin(), seconds.end()), exchange = ring_seconds(context_.mode->push_bytes());
    for (int worker = 0; worker < context_.spec.workers; ++worker)
      add_exchange(worker, seconds[static_cast<size_t>(worker)], slowest, exchange);
    context_.statistics.add_bytes(0, ring_bytes(context_.mode->push_bytes()));
    advance(slowest + exchange);
    return AppliedPush{whole.item, whole.loss, outcome};
  }

  /// The job restarts from here when a worker dies.
  std::vector<FlatPiece> saved_pieces() override {
    since_checkpoint_seconds_ = 0;
    return {};
  }

 private:
  /// Advances the clock by these seconds of work, and by the cost of deaths meanwhile.
  void advance(double seconds) {
    double left = seconds;
    for (int deaths = 0;; ++deaths) {
      const std::optional<double> next = context_.clock.next_event_seconds();
      if (!next || *next > context_.clock.now() + left) break;
      if (deaths == kMaxDeathsPerStep)
        fail(
            ErrorCode::kFailed, "after ", deaths, " deaths no step is complete: with ", context_.spec.workers, " workers, one dies every ",
            context_.spec.mtbf_seconds / context_.spec.workers, " seconds, and ", since_checkpoint_seconds_ + seconds,
            name_settings(" seconds of work are done again each time; take a smaller --checkpoint-every, a larger mtbf, or fewer workers"));
      const double before = context_.clock.now();
      const int worker = context_.clock.next()->worker;
      ++context_.statistics.worker(worker).deaths;
      if (const bool is_down_already = *next < before; !is_down_already) {
        ++context_.statistics.worker(worker).lost;
        context_.clock.advance(context_.spec.restart_seconds);
        left = since_checkpoint_seconds_ + seconds;
      }
      schedule_death(worker, kRoundDeath);
    }
    context_.clock.advance(left);
    since_checkpoint_seconds_ += seconds;
  }

  double since_checkpoint_seconds_ = 0;  // Work that a death would undo.
};

// ---- sync=local and diloco ----

class LocalRounds : public VirtualDriver {
 public:
  LocalRounds(VirtualContext context, LocalModels& models, int64_t steps)
      : VirtualDriver(std::move(context)), models_(models), steps_(steps) {}

  std::optional<AppliedPush> run_next() override {
    Round round;
    int64_t done = 0;
    for (int fragment = 0; fragment < models_.num_fragments(); ++fragment) {
      const int64_t until = step_of_fragment(fragment, models_.num_fragments(), steps_);
      run_fragment(fragment, until - done, round);
      done = until;
    }
    AppliedPush push{.item = {round.last_step, 0, {0, round.trained_samples}, round.all_samples / round.steps}};
    push.loss = round.loss / static_cast<double>(round.trained_samples) * push.item.weight();
    push.outcome.gradient_norm = round.gradient_norm;
    return push;
  }

  Json state() const override { return Json{{"absent", absent_}}; }

  std::vector<FlatPiece> loaded_pieces(const Json& state, const std::string& where) override {
    const JsonFields fields(state, where);
    absent_.clear();
    for (const int64_t worker : fields.naturals("absent", static_cast<size_t>(context_.spec.workers))) {
      if (worker >= context_.spec.workers) fields.refuse("there is no worker ", worker);
      absent_.insert(static_cast<int>(worker));
    }
    return {};
  }

 private:
  /// A worker's items up to an exchange.
  struct WorkerSteps {
    std::vector<WorkItem> items;
    double seconds = 0;     // Computing time.
    bool completes = true;  // Does not die before.
    int64_t num_samples() const {
      int64_t samples = 0;
      for (const WorkItem& item : items) samples += item.num_samples();
      return samples;
    }
  };
  /// Sums over a round.
  struct Round {
    double loss = 0;  // Over samples.
    int64_t trained_samples = 0, all_samples = 0, steps = 0, last_step = 0;
    double gradient_norm = 0;
  };

  /// The items of the next steps: of each step, each worker's own share.
  std::vector<WorkerSteps> take_items(int64_t steps) {
    std::vector<WorkerSteps> all(static_cast<size_t>(context_.spec.workers));
    for (int64_t step = 0; step < steps; ++step) {
      std::vector<WorkItem> taken;
      for (int worker = 0; worker < context_.spec.workers; ++worker) {
        const std::optional<WorkItem> item = context_.queue.take(worker, 0);
        if (!item) break;  // The last step of an epoch may have fewer shares.
        taken.push_back(*item);
        all[static_cast<size_t>(worker)].items.push_back(*item);
      }
      for (const WorkItem& item : taken) context_.queue.finish(item);  // So that the next step's can be taken.
    }
    return all;
  }

  /// Processes deaths and restarts up to that moment. A worker that restarts takes part from the next round on.
  void advance_to(double moment, std::vector<WorkerSteps>& all) {
    while (context_.clock.next_event_seconds() && *context_.clock.next_event_seconds() <= moment) {
      const VirtualEvent event = *context_.clock.next();
      if (event.kind == kRoundRestart) {
        absent_.erase(event.worker);
        models_.forget(event.worker);
        schedule_death(event.worker, kRoundDeath);
        continue;
      }
      absent_.insert(event.worker);
      ++context_.statistics.worker(event.worker).deaths;
      all[static_cast<size_t>(event.worker)].completes = false;
      context_.clock.schedule(context_.spec.restart_seconds, kRoundRestart, event.worker);
    }
    context_.clock.advance(moment - context_.clock.now());
  }

  /// Advances until the slowest worker that completes has done so; returns its computing seconds.
  double advance_to_exchange(std::vector<WorkerSteps>& all) {
    for (int attempts = 0;; ++attempts) {
      if (attempts == kMaxRoundAttempts)
        fail(ErrorCode::kFailed, "in ", attempts, " rounds no worker lived to the exchange: with one death every ",
             context_.spec.mtbf_seconds, name_settings(" seconds of a worker's life take a larger mtbf, or exchange more often"));
      double slowest = 0;
      for (int worker = 0; worker < context_.spec.workers; ++worker) {
        WorkerSteps& own = all[static_cast<size_t>(worker)];
        own.completes = !absent_.contains(worker);
        own.seconds = 0;
        for (const WorkItem& item : own.items)
          if (own.completes) own.seconds += context_.clock.work(worker, context_.item_seconds(item));
        slowest = std::max(slowest, own.seconds);
      }
      // With all workers absent, until the first restart.
      const bool all_absent = std::ssize(absent_) == context_.spec.workers;
      advance_to(all_absent ? *context_.clock.next_event_seconds() : context_.clock.now() + slowest, all);
      if (std::any_of(all.begin(), all.end(), [](const WorkerSteps& own) { return own.completes && !own.items.empty(); })) return slowest;
    }
  }

  void run_fragment(int fragment, int64_t steps, Round& round) {
    std::vector<WorkerSteps> all = take_items(steps);
    const double slowest = advance_to_exchange(all);
    compute(fragment, all, round);
    const int64_t bytes = models_.exchanged_bytes(fragment);
    const double exchange = ring_seconds(bytes);
    for (int worker = 0; worker < context_.spec.workers; ++worker) {
      const WorkerSteps& own = all[static_cast<size_t>(worker)];
      if (own.completes) add_exchange(worker, own.seconds, slowest, exchange);
      else context_.statistics.worker(worker).lost += std::ssize(own.items);  // Nobody trains on them.
    }
    context_.statistics.add_bytes(0, ring_bytes(bytes));
    context_.clock.advance(exchange);
    const std::vector<WorkItem>& any =
        std::find_if(all.begin(), all.end(), [](const WorkerSteps& own) { return !own.items.empty(); })->items;
    for (const WorkItem& item : any) round.all_samples += item.global_samples;
    round.steps += std::ssize(any);
    round.last_step = any.back().step;
  }

  /// Trains the workers that complete, and makes the exchange.
  void compute(int fragment, const std::vector<WorkerSteps>& all, Round& round) {
    std::vector<std::optional<int64_t>> samples;
    for (const WorkerSteps& own : all) {
      samples.push_back(own.completes ? std::optional(own.num_samples()) : std::nullopt);
      round.trained_samples += samples.back().value_or(0);
    }
    const double began = steady_seconds();
    const StepNumbers numbers = context_.numbers();
    models_.begin_fragment(fragment, samples);
    for (int worker = 0; worker < context_.spec.workers; ++worker) {
      const WorkerSteps& own = all[static_cast<size_t>(worker)];
      // With fragments a worker without samples now may have had some since this fragment's last exchange.
      if (!own.completes || (own.items.empty() && models_.num_fragments() == 1)) continue;
      models_.begin(worker);
      for (const WorkItem& item : own.items) {
        const StepNumbers step_numbers{context_.learning_rate_at(item.step), numbers.clip_norm};
        const WorkResult result = context_.compute(item, step_numbers.learning_rate);
        round.loss += result.loss * static_cast<double>(item.global_samples);
        round.gradient_norm = models_.step(worker, item, result, step_numbers);
        context_.statistics.add_push(worker, item, {});
      }
      models_.end(worker);
    }
    const double computed = steady_seconds();
    compute_seconds_ += computed - began;
    models_.exchange_fragment();
    push_seconds_ += steady_seconds() - computed;
  }

  LocalModels& models_;
  int64_t steps_;
  std::set<int> absent_;  // Workers that died and have not restarted.
};

}  // namespace

void VirtualDriver::begin() {
  for (int worker = 0; worker < context_.spec.workers; ++worker) schedule_death(worker, kRoundDeath);
}

void VirtualDriver::schedule_death(int worker, int kind) {
  if (const auto seconds = context_.clock.lifetime(worker)) context_.clock.schedule(*seconds, kind, worker);
}

void VirtualDriver::add_exchange(int worker, double computing_seconds, double slowest_seconds, double exchange_seconds) {
  context_.statistics.add_seconds(
      worker,
      {.computing_seconds = computing_seconds, .waiting_seconds = slowest_seconds - computing_seconds, .moving_seconds = exchange_seconds});
}

std::unique_ptr<VirtualDriver> make_step_rounds(VirtualContext context) { return std::make_unique<StepRounds>(std::move(context)); }

std::unique_ptr<VirtualDriver> make_local_rounds(VirtualContext context, LocalModels& models, int64_t steps) {
  return std::make_unique<LocalRounds>(std::move(context), models, steps);
}

}  // namespace cohort
