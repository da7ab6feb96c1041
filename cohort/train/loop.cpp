// The training loop. A step (training_step.h) takes this rank's share of the global batch from the loader, which reads ahead; the loss and
// Ctrl-C of each rank travel with the gradients, so all ranks report one loss and stop after the same step without a message of their own.
// Then evaluation and checkpoint where they are due. With sync=local:H and diloco:H the steps between two exchanges are each worker's own,
// and all of this is done at exchanges alone.
#include "cohort/train/loop.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <memory>
#include <thread>
#include <utility>

#include "cohort/data/loader.h"
#include "cohort/data/sampler.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/train/advice/balance.h"
#include "cohort/train/after_step.h"

namespace cohort {
namespace {

/// Ranks in lockstep: each step, or each round of steps that ends with an exchange, is one of all of them.
class Loop {
 public:
  Loop(RunSetup& run, RunSaver& saver, RunReporter& reporter)
      : run_(run), saver_(saver), reporter_(reporter), after_(run, saver, reporter) {
    const int64_t pieces = std::max(1, run.config.accumulate);
    if (run.world.size > 1 && run.job.shares.automatic)
      balance_ = std::make_unique<Balance>(run.job.shares.of(run.world.size),
                                           std::max<int64_t>(1, run.config.global_batch / pieces / run.model->sample_granularity()));
  }
  TrainResult train();

 private:
  void train_step(Loader& loader, int64_t number);
  void inject(int64_t number) const;
  void rebalance(Loader& loader, int64_t number, const StepRecord& metrics, int64_t num_samples);

  RunSetup& run_;
  RunSaver& saver_;
  RunReporter& reporter_;
  AfterStep after_;
  std::unique_ptr<Balance> balance_;  // Null where shares stay as they are.
};

/// Faults that were asked for.
void Loop::inject(int64_t number) const {
  if (number == run_.injection.kill_step) ::raise(SIGKILL);
  if (number == saver_.first_step() && run_.injection.pause_seconds > 0)
    std::this_thread::sleep_for(std::chrono::duration<double>(run_.injection.pause_seconds));
}

/// Gives faster ranks more samples, from a step on that nobody has read yet.
void Loop::rebalance(Loader& loader, int64_t number, const StepRecord& metrics, int64_t num_samples) {
  if (!balance_) return;
  balance_->add_step(metrics.compute_seconds, num_samples);
  if ((number + 1) % Balance::kStepsOfRound != 0) return;
  if (!balance_->update(gather_numbers(run_.group, balance_->seconds_per_sample(), "the ranks' speeds"))) return;
  const int64_t from = loader.first_free_step();
  if (from >= run_.total_steps) return;
  loader.set_weights(from, balance_->weights());
  reporter_.shares(from + 1, balance_->weights());
}

void Loop::train_step(Loader& loader, int64_t number) {
  inject(number);
  LoadedBatch batch = loader.next();
  const StepResult step = run_.step->run(number, batch);
  const int64_t done = number + 1;
  if (run_.status) run_.status[run_.world.rank].last_step = done;
  // Where workers train by themselves all else comes with their exchanges.
  if (step.num_steps == 0) return loader.recycle(std::move(batch.batch));
  rebalance(loader, number, step.metrics, step.num_samples);
  loader.recycle(std::move(batch.batch));
  after_.finish(number, step);
}

TrainResult Loop::train() {
  reporter_.start();
  const int64_t first = saver_.first_step();
  if (run_.options.keep_first) saver_.save(first, /*is_last=*/false, reporter_);
  if (first < run_.total_steps && !after_.ends()) {
    Loader loader(run_.data.train, run_.loader_options(first));
    for (int64_t number = first; !after_.ends(); ++number) train_step(loader, number);
  }
  after_.evaluate_at_end();
  reporter_.end(after_.result());
  return after_.result();
}

}  // namespace

TrainResult train_in_step(RunSetup& run, RunSaver& saver, RunReporter& reporter) { return Loop(run, saver, reporter).train(); }

}  // namespace cohort
