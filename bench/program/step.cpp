#include "bench/program/step.h"

#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <sys/mman.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <new>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/statistics.h"
#include "cohort/base/system/machine.h"
#include "cohort/base/text/text.h"
#include "cohort/comm/compute_threads.h"
#include "cohort/comm/group.h"
#include "cohort/models/registry.h"
#include "cohort/parallel/strategy/data_parallel.h"
#include "cohort/train/advice/run_advice.h"
#include "cohort/train/model/batch_tensors.h"
#include "cohort/world/launch.h"

namespace cohort {

const std::vector<std::string>& bench_workloads() {
  static const std::vector<std::string> names = {"mlp-small", "mlp", "cnn", "gpt"};
  return names;
}

BenchWorkload bench_workload(const std::string& name) {
  const DataShape pictures{DataShape::Kind::kImage, {1, 28, 28}, 10, {}}, text{DataShape::Kind::kText, {128}, 256, {}};
  if (name == "mlp-small") return {"mlp-small", pictures, 16};
  if (name == "mlp") return {"mlp", pictures, 64};
  if (name == "cnn") return {"cnn-bench", pictures, 32};
  if (name == "gpt") return {"gpt", text, 8};
  fail(ErrorCode::kBadInput, "no workload '", name, "'", did_you_mean(name, bench_workloads()),
       "; workloads: ", join(bench_workloads(), " "));
}

BatchTensors bench_batch(const BenchWorkload& workload) {
  torch::manual_seed(1);
  std::vector<int64_t> sizes{workload.batch};
  sizes.insert(sizes.end(), workload.shape.input.begin(), workload.shape.input.end());
  const bool pictures = workload.shape.kind == DataShape::Kind::kImage;
  BatchTensors batch;
  batch.input = pictures ? at::randn(sizes) : at::randint(256, sizes, at::kLong);
  batch.target = at::randint(workload.shape.num_classes, pictures ? std::vector<int64_t>{workload.batch} : sizes, at::kLong);
  return batch;
}

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
  // Rank 0 is another process, so its result is returned in a shared page.
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
