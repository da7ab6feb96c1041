// A pipeline of sleeping layers, one for each stage: the time of a step beyond its simulation is that of the runtime.
//
// The first stage's input needs no gradient; its weight part sleeps for both, as the first layers of a model have nothing to hand back
// early. The layers are equal; or each stage sleeps as long as its layers of a real model compute here, which shows what a cut is worth on
// more ranks than there are cores.
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <sys/prctl.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <cerrno>
#include <cmath>
#include <ctime>
#include <memory>
#include <utility>
#include <vector>

#include "bench/program/pipeline.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/models/registry.h"
#include "cohort/pipeline/model_part.h"
#include "cohort/plan/cost/pipeline_forecast.h"
#include "cohort/plan/cut/split.h"
#include "cohort/train/model/profile_layers.h"
#include "cohort/tune/measure_machine.h"

namespace cohort {
namespace {

// A model whose layers sleep instead of computing: sleeping ranks need no processor, so that 8 of them run undisturbed on a machine with 2
// cores.

/// Seconds that a layer sleeps for one micro-batch.
struct Delays {
  double forward = 0, backward_input = 0, backward_weight = 0;
};

// The node behind a layer's output sleeps for the gradient of its input and for that of its weight, each only where the engine asks for it:
// as LibTorch's own operators do, so that split backward divides it as it would divide a matrix product.
void sleep_seconds(double seconds) {
  timespec left{static_cast<time_t>(seconds), static_cast<long>(std::fmod(seconds, 1.0) * 1e9)};
  while (::clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR) {
  }
}

struct SleepBackward : torch::autograd::TraceableFunction {
  explicit SleepBackward(const Delays& delays_) : delays(delays_) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    torch::autograd::variable_list out(2);
    if (task_should_compute_output(0)) {
      sleep_seconds(delays.backward_input);
      out[0] = gradients.at(0);
    }
    if (task_should_compute_output(1)) {
      sleep_seconds(delays.backward_weight);
      out[1] = at::ones({1});
    }
    return out;
  }
  std::string name() const override { return "cohort::SleepBackward"; }

  const Delays delays;
};

class SleepLayer : public torch::nn::Module {
 public:
  explicit SleepLayer(const Delays& delays) : torch::nn::Module("SleepLayer"), delays_(delays) {
    weight_ = register_parameter("weight", at::zeros({1}));
  }
  at::Tensor forward(const at::Tensor& input) {
    sleep_seconds(delays_.forward);
    at::Tensor output = input.detach().clone();
    if (!torch::autograd::compute_requires_grad(input, weight_)) return output;
    const auto node = c10::make_intrusive<SleepBackward>(delays_);
    node->set_next_edges(torch::autograd::collect_next_edges(input, weight_));
    torch::autograd::set_history(output, node);
    return output;
  }

 private:
  const Delays delays_;
  at::Tensor weight_;
};

/// A chain of one layer for each of `delays`; its input and output are {1}.
std::shared_ptr<LayerGraph> sleeping_model(const std::vector<Delays>& delays) {
  auto graph = std::make_shared<LayerGraph>();
  for (size_t stage = 0; stage < delays.size(); ++stage) {
    const auto layer = std::make_shared<SleepLayer>(delays[stage]);
    graph->add_layer(concat("sleep", stage), "sleep", layer, [layer](const LayerGraph::Inputs& in) { return layer->forward(in.at(0)); },
                     {});
  }
  return graph;
}

constexpr int64_t kMicroBatch = 16;  // Pictures of a micro-batch whose delays are those of a model's layers.

/// The delays of each stage; stages of one rank divide its time evenly.
std::vector<Delays> delays_of(int num_stages, const BenchDelaysOptions& options) {
  const double part = options.part_seconds * options.num_ranks / num_stages;
  std::vector<Delays> delays(static_cast<size_t>(num_stages), Delays{part, part, part});
  delays.front().backward_input = 0;
  delays.front().backward_weight = 2 * part;
  return delays;
}

Layout layout_of(const std::string& schedule, const BenchDelaysOptions& options) {
  Layout layout;
  layout.pp = options.num_ranks;
  layout.schedule = schedule;
  layout.microbatches = options.num_micro_batches;
  return layout;
}

/// A plan whose stages are single layers, placed as the schedule says.
StageAssignment stages_of(const std::string& schedule, int num_ranks) {
  StageAssignment stages;
  for (const std::vector<int>& ranks : ranks_of_stages(make_schedule(schedule, {.num_ranks = num_ranks, .num_micro_batches = 1}))) {
    stages.stage_of.push_back(static_cast<int>(stages.stage_of.size()));
    stages.worker_of_stage.push_back(ranks.front());
  }
  return stages;
}

Json measure(const std::string& schedule, const std::vector<Delays>& delays, const BenchDelaysOptions& options, Group& group) {
  ::prctl(PR_SET_TIMERSLACK, 1UL);  // By default the kernel may wake a thread 50 us late.
  const auto model = sleeping_model(delays);
  ModelPart parallel(*model, group, layout_of(schedule, options), stages_of(schedule, options.num_ranks));
  PipelineWork work;
  work.input = [](int) { return at::zeros({1}); };
  work.loss = [](int, const at::Tensor& output) { return output.sum(); };
  PipelineMeter meter(*parallel.pipeline(), group);
  parallel.pipeline()->step(options.num_micro_batches, work);
  for (int step = 0; step < options.steps; ++step) meter.step([&] { parallel.pipeline()->step(options.num_micro_batches, work); });
  const PipelineMeter::Result result = meter.result();
  return Json{{"step_seconds", result.step_seconds}, {"bubble", result.bubble}, {"trace", timeline_trace(result.last).dump()}};
}

/// The step as simulated from delays and schedule.
Timeline simulated(const std::string& schedule, const std::vector<Delays>& delays, const BenchDelaysOptions& options, bool equal_parts) {
  StageCosts costs;
  for (const Delays& one : delays) {
    costs.forward.push_back(one.forward);
    costs.backward_input.push_back(equal_parts ? one.forward : one.backward_input);
    costs.backward_weight.push_back(equal_parts ? one.forward : one.backward_weight);
  }
  return simulate(make_schedule(schedule, {.num_ranks = options.num_ranks, .num_micro_batches = options.num_micro_batches}), costs);
}

PipelineTimes times_of(Layout layout, const std::vector<Delays>& delays, const BenchDelaysOptions& options) {
  const std::string schedule = layout.schedule;
  const Timeline expected = simulated(schedule, delays, options, false);
  const double theory = simulated(schedule, delays, options, true).bubble;
  const Json measured = measure_in_ranks(options.num_ranks, options.backend,
                                         [&](const World&, Group& group) { return measure(schedule, delays, options, group); });
  return {std::move(layout),
          measured.at("step_seconds").get<double>(),
          expected.makespan,
          measured.at("bubble").get<double>(),
          expected.bubble,
          theory,
          measured.at("trace").get<std::string>()};
}

void check_workers(const BenchDelaysOptions& options) {
  if (options.num_ranks < 2) fail(ErrorCode::kBadInput, "bench pipeline: ", options.num_ranks, " workers; a pipeline needs 2 or more");
}

/// Seconds that each stage of a real model computes for one micro-batch with this cut; [stage][forward, input part, weight part].
Json stages_of_model(const std::string& specification, const std::vector<std::string>& splits, const BenchDelaysOptions& options) {
  const auto model = build_model(specification, {.input = {3, 32, 32}, .num_classes = 10}, 0);
  const at::Tensor input = at::randn({kMicroBatch, 3, 32, 32});
  const auto loss = [](const at::Tensor& output) { return output.square().mean(); };
  const Profile profile = profile_layers(*model, input, {.repeats = 15, .loss = loss});
  Json answer = Json::array();
  for (const std::string& split : splits) {
    Layout layout = layout_of("1f1b", options);
    layout.split = split;
    const SplitOptions of_split{.num_stages = layout.pp, .num_micro_batches = layout.microbatches, .num_ranks = layout.pp};
    const StageAssignment chain = stages_of("1f1b", layout.pp);
    const Split cut = split == "even" ? even_split(profile, of_split) : auto_split(profile, layout, of_split, chain.worker_of_stage);
    Json& stages = answer.emplace_back(Json::array());
    const StageAssignment assigned{stage_of_layers(cut.first_layer, profile.layers.size()), chain.worker_of_stage};
    for (const PipelineRecord::Stage& stage : forecast_pipeline(profile, layout, assigned, {}).stages)
      stages.push_back({stage.forward_seconds, stage.backward_input_seconds, stage.backward_weight_seconds});
  }
  return answer;
}

}  // namespace

std::vector<PipelineTimes> bench_pipeline_delays(const BenchDelaysOptions& options) {
  check_workers(options);
  std::vector<PipelineTimes> times;
  for (const std::string& schedule : options.schedules)
    times.push_back(times_of(layout_of(schedule, options), delays_of(num_stages_of(schedule, options.num_ranks), options), options));
  return times;
}

std::vector<PipelineTimes> bench_split_delays(const std::string& model, const BenchDelaysOptions& options) {
  check_workers(options);
  const std::vector<std::string> splits = {"even", "auto"};
  // Measured in a forked rank, since this process must keep one thread.
  const Json of_splits =
      measure_in_ranks(1, options.backend, [&](const World&, Group&) { return stages_of_model(model, splits, options); });
  std::vector<PipelineTimes> times;
  for (size_t i = 0; i < splits.size(); ++i) {
    std::vector<Delays> delays;
    for (const Json& stage : of_splits.at(i))
      delays.push_back({stage.at(0).get<double>(), stage.at(1).get<double>(), stage.at(2).get<double>()});
    delays.front().backward_weight += std::exchange(delays.front().backward_input, 0);
    Layout layout = layout_of("1f1b", options);
    layout.split = splits[i];
    times.push_back(times_of(std::move(layout), delays, options));
  }
  return times;
}

}  // namespace cohort
