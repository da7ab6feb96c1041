#include "cohort/bench/step.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <new>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/statistics.h"
#include "cohort/base/system/memory.h"
#include "cohort/bench/workload.h"
#include "cohort/comm/compute_threads.h"
#include "cohort/comm/group.h"
#include "cohort/models/registry.h"
#include "cohort/train/advice/run_advice.h"
#include "cohort/train/model/batch_tensors.h"
#include "cohort/world/launch.h"

namespace cohort {
namespace {

using Clock = std::chrono::steady_clock;

/// One model with its strategy, training on a fixed batch.
class Trainee {
 public:
  Trainee(const BenchWorkload& workload, Group group, const StrategyOptions& options, Precision precision)
      : precision_(precision),
        model_(build_model(workload.model, workload.shape, 0)),
        strategy_(make_strategy(*model_, std::move(group), options)),
        batch_(bench_batch(workload)) {}
  void step() {
    strategy_->zero_grad();
    at::Tensor loss;
    {
      const AutocastScope autocast(precision_, c10::DeviceType::CPU);
      loss = cross_entropy(for_loss(model_->forward(batch_.input)), batch_.target);
    }
    loss.backward();
    strategy_->finish_backward();
    strategy_->step({.learning_rate = 1e-3});
  }
  std::vector<at::Tensor> parameters() const { return model_->parameters(); }
  double exposed_seconds() const { return strategy_->statistics().exposed_seconds; }

 private:
  Precision precision_;
  std::shared_ptr<LayerGraph> model_;
  std::unique_ptr<Strategy> strategy_;
  BatchTensors batch_;
};

void measure(const BenchStepOptions& options, const World& world, StepTimes& out) {
  constexpr int kBlock = 5, kWarmUp = 5;
  keep_freed_memory();
  use_compute_threads(1);
  const BenchWorkload workload = bench_workload(options.workload);
  Group group = Group::create(world, {.backend = options.backend});
  StrategyOptions strategy = options.strategy;
  Trainee alone(workload, Group(), {.rule = strategy.rule}, options.precision), together(workload, group, strategy, options.precision);
  std::vector<double> step_seconds, floor_seconds, one_worker_seconds, exposed_seconds;
  const auto block = [&](Trainee& trainee, std::vector<double>* seconds, bool with_barriers) {
    for (int i = 0; i < kBlock; ++i) {
      if (with_barriers) group.barrier();
      const auto start = Clock::now();
      trainee.step();
      if (!seconds) continue;
      seconds->push_back(seconds_since(start));
      if (seconds == &step_seconds) exposed_seconds.push_back(together.exposed_seconds());
    }
  };
  for (int i = 0; i < kWarmUp; ++i) block(together, nullptr, true), block(alone, nullptr, true);
  for (int done = 0; done < options.steps; done += kBlock) {
    block(together, &step_seconds, true);
    block(alone, &floor_seconds, true);
    group.barrier();
    if (world.rank == 0) block(alone, &one_worker_seconds, false);
    group.barrier();
  }
  std::vector<std::vector<int64_t>> shapes;
  for (const at::Tensor& parameter : together.parameters()) shapes.push_back(parameter.sizes().vec());
  const std::string advice =
      options.strategy.zero > 0 || options.strategy.compress != "none" || world.size == 1
          ? ""
          : measure_advice(group, {median(step_seconds), median(exposed_seconds)}, gradient_buckets(shapes)).sentence;
  if (world.rank != 0) return;
  out = {median(step_seconds), median(floor_seconds), median(one_worker_seconds), median(exposed_seconds), {}};
  advice.copy(out.advice, sizeof out.advice - 1);
}

}  // namespace

StepTimes bench_step(const BenchStepOptions& options) {
  bench_workload(options.workload);
  // Rank 0 is another process: its result comes back through a shared page.
  void* const page = ::mmap(nullptr, sizeof(StepTimes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) throw std::bad_alloc();
  StepTimes& shared = *new (page) StepTimes;
  const int code = run_ranks({.num_ranks = options.num_ranks, .is_one_of_many = true}, [&](const World& world) {
    measure(options, world, shared);
    return 0;
  });
  const StepTimes result = shared;
  ::munmap(page, sizeof(StepTimes));
  if (code != 0) throw Error(static_cast<ErrorCode>(code), concat("bench step: the ranks ended with code ", code));
  return result;
}

}  // namespace cohort
