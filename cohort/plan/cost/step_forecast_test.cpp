#include "cohort/plan/cost/step_forecast.h"

#include <doctest/doctest.h>

#include "cohort/base/fail.h"
#include "cohort/plan/cost/memory.h"
#include "cohort/plan/cost/pipeline_forecast.h"

namespace cohort {
namespace {

/// Eight devices on two hosts; a byte takes a millisecond between hosts and half of that inside, memory moves 1,000 bytes a second.
Cluster two_hosts() {
  Cluster cluster{.name = "made up"};
  cluster.devices = {{.name = "d", .memory_bytes = 1'000'000, .rates = {{"fp32", 1}}, .memory_bytes_per_second = 1e9}};
  cluster.hosts = {{2, 4, 0}};
  for (Link& link : cluster.inside.by_exchange) link = {0, 0, 2000};
  for (Link& link : cluster.across.by_exchange) link = {0, 0, 1000};
  return cluster;
}

/// Layers in a row; a sample takes 1, 2 and 3 seconds in each, 10 trained elements, 8 bytes of stash and 4 handed on.
ModelProfile chain(int num_layers, int tensor_parts = 1) {
  ModelProfile profile{.model = "chain"};
  for (int layer = 0; layer < num_layers; ++layer) {
    profile.layers.push_back({.name = "l" + std::to_string(layer),
                              .kind = "linear",
                              .num_trained = 10,
                              .tensor_parts = tensor_parts,
                              .num_tensor_exchanges = tensor_parts > 1 ? 1 : 0});
    profile.edges.emplace_back(layer - 1, layer);
  }
  for (const int tp : {1, 2}) {
    if (tp > tensor_parts) break;
    ProfilePoint point{.tp = tp, .micro_batch = 1};
    for (int layer = 0; layer < num_layers; ++layer) point.layers.push_back({1.0 / tp, 2.0 / tp, 3.0 / tp, 0.9, 1.1, 8 / tp, 4});
    profile.points.push_back(point);
  }
  return profile;
}

PlanProblem problem_of(int num_layers, int64_t batch, int tensor_parts = 1) {
  PlanProblem problem{.profile = chain(num_layers, tensor_parts), .cluster = two_hosts(), .global_batch = batch};
  problem.optimizer_arrays = 1;
  problem.bucket_bytes = 1 << 20;
  return problem;
}

Candidate even_pipeline(const PlanProblem& problem, const Layout& layout, int num_stages) {
  Candidate candidate{.layout = layout};
  const int layers = static_cast<int>(problem.profile.layers.size());
  for (int layer = 0; layer < layers; ++layer) candidate.stages.stage_of.push_back(layer * num_stages / layers);
  for (int stage = 0; stage < num_stages; ++stage) {
    const bool is_v = layout.schedule == "zb-v" && stage >= layout.pp;
    candidate.stages.worker_of_stage.push_back(is_v ? num_stages - 1 - stage : stage % layout.pp);
  }
  return candidate;
}

TEST_CASE("step forecast: one process, and accumulation") {
  const PlanProblem problem = problem_of(4, 12);
  const StepForecast one = forecast_step(problem, {});
  CHECK(one.pipeline_seconds == doctest::Approx(12 * 4 * 6));
  CHECK(one.workers.size() == 1);
  CHECK(one.workers[0].update_seconds == doctest::Approx(5 * 160 / 1e9));  // Gradient, weight and momentum: read, and two written.
  CHECK(one.low_seconds == doctest::Approx(0.9 * one.step_seconds));
  CHECK(one.high_seconds == doctest::Approx(1.1 * one.step_seconds));
  CHECK(one.workers[0].memory.stash == 12 * 4 * 8);
  const StepForecast three = forecast_step(problem, {.layout = {.accumulate = 3}});
  CHECK(three.pipeline_seconds == doctest::Approx(one.pipeline_seconds));
  CHECK(three.workers[0].memory.stash == 4 * 4 * 8);
  CHECK(three.workers[0].memory.weights == 160);
  CHECK(three.workers[0].memory.optimizer == 160);
  CHECK_THROWS_WITH_AS(forecast_step(problem, {.layout = {.accumulate = 13}}), doctest::Contains("no sample for each of 13"), Error);
  CHECK_THROWS_WITH_AS(forecast_step(problem, {.layout = {.dp = 9}}), doctest::Contains("needs 9 devices"), Error);
}

TEST_CASE("step forecast: replicas exchange gradients, behind the last backward where they can") {
  PlanProblem problem = problem_of(4, 8);
  const StepForecast inside = forecast_step(problem, {.layout = {.dp = 4}});
  CHECK(inside.pipeline_seconds == doctest::Approx(2 * 4 * 6));
  CHECK(inside.workers[0].exchange_seconds == doctest::Approx(2 * 0.75 * 160 / 2000));
  CHECK(inside.workers[0].exposed_seconds == doctest::Approx(inside.workers[0].exchange_seconds));  // One bucket: the last.
  problem.bucket_bytes = 16;
  CHECK(forecast_step(problem, {.layout = {.dp = 4}}).workers[0].exposed_seconds ==
        doctest::Approx(inside.workers[0].exchange_seconds / 10));
  const StepForecast across = forecast_step(problem, {.layout = {.dp = 8}});
  CHECK(across.workers[0].exchange_seconds == doctest::Approx(2 * 7.0 / 8 * 160 / 1000));
  const StepForecast half = forecast_step(problem, {.layout = {.dp = 8, .compress = "fp16"}});
  CHECK(half.workers[0].exchange_seconds == doctest::Approx(across.workers[0].exchange_seconds / 2 + 3 * 160 / 1e9));
  for (const int zero : {1, 2, 3}) {
    CAPTURE(zero);
    const StepForecast divided = forecast_step(problem, {.layout = {.dp = 8, .zero = zero}});
    CHECK(divided.workers[0].exchange_seconds == doctest::Approx(7.0 / 8 * 160 / 1000 * (zero == 3 ? 3 : 2)));
    CHECK(divided.workers[0].memory.optimizer == 20);
    CHECK(divided.workers[0].update_seconds == doctest::Approx(across.workers[0].update_seconds / 8));
  }
  problem.cluster.shared_memory = true;
  const StepForecast one_copy = forecast_step(problem, {.layout = {.dp = 4}});
  CHECK(one_copy.workers[0].exchange_seconds == 0);
  CHECK(one_copy.workers[0].memory.weights == 40);
  CHECK(forecast_step(problem, {.layout = {.dp = 8}}).workers[0].memory.weights == 160);  // Two hosts.
}

TEST_CASE("step forecast: pipelines are simulated, long ones by what repeats itself") {
  const PlanProblem problem = problem_of(8, 4096);
  const StepForecast small = forecast_step(problem, even_pipeline(problem_of(8, 8), {.pp = 4, .microbatches = 8}, 4));
  CHECK(small.bubble == doctest::Approx(3.0 / 11).epsilon(0.01));
  CHECK(small.workers[0].memory.stash == 4 * 512 * 16);    // 1F1B: four micro-batches of 512 samples.
  CHECK(small.workers[3].memory.stash == 512 * (16 + 4));  // And what came from the stage before.
  for (const char* schedule : {"1f1b", "gpipe", "interleaved:2", "bfs:2", "zb-h1", "zb-v"}) {
    CAPTURE(schedule);
    const int stages = std::string(schedule).find(":2") != std::string::npos || schedule == std::string("zb-v") ? 8 : 4;
    PlanProblem uneven = problem_of(8, 8192);
    uneven.profile.points[0].layers[5].forward_seconds = 4;  // One stage is slower.
    const Candidate candidate = even_pipeline(uneven, {.pp = 4, .schedule = schedule, .microbatches = 4096}, stages);
    const StepForecast quick = forecast_step(uneven, candidate), whole = forecast_step(uneven, candidate, true);
    CHECK(quick.pipeline_seconds == doctest::Approx(whole.pipeline_seconds).epsilon(1e-3));
    CHECK(quick.bubble == doctest::Approx(whole.bubble).epsilon(2e-2));
    for (size_t worker = 0; worker < 4; ++worker)
      CHECK(static_cast<double>(quick.workers[worker].memory.stash) ==
            doctest::Approx(static_cast<double>(whole.workers[worker].memory.stash)).epsilon(1e-3));
    CHECK(whole.timeline.makespan == doctest::Approx(whole.pipeline_seconds));
  }
}

TEST_CASE("step forecast: a pipeline is what forecast_pipeline says") {
  PlanProblem problem = problem_of(6, 6);
  Candidate candidate = even_pipeline(problem, {.pp = 3, .schedule = "zb-h1", .microbatches = 6}, 3);
  Profile profile = profile_at(problem.profile, {"d", "fp32", 1, 1});
  profile.link_bytes_per_second = 2000;
  candidate.stages.seconds = ordering_seconds(profile, candidate.layout, candidate.stages, {});
  CHECK(candidate.stages.seconds.forward == std::vector<double>{2, 2, 2});
  const PipelineRecord record = forecast_pipeline(profile, candidate.layout, candidate.stages, {});
  CHECK(forecast_step(problem, candidate).pipeline_seconds == doctest::Approx(record.predicted_step_seconds));
}

TEST_CASE("step forecast: divided layers, and layers that run again") {
  const PlanProblem problem = problem_of(4, 4, 2);
  const StepForecast two = forecast_step(problem, {.layout = {.tp = 2}});
  // Half the work; one all-reduce of 4 bytes a sample each way, of which a rank sends as many.
  CHECK(two.pipeline_seconds == doctest::Approx(4 * 4 * 3 + 2 * 4 * (4 * 4.0 / 2000)));
  CHECK(two.workers[0].memory.weights == 80);
  Candidate again{.layout = {.tp = 2}, .recompute = {true, true, false, false}};
  const StepForecast twice = forecast_step(problem, again);
  CHECK(twice.pipeline_seconds == doctest::Approx(two.pipeline_seconds + 2 * (4 * 0.5 + 4 * 4.0 / 2000)));
  CHECK(twice.workers[0].memory.stash < two.workers[0].memory.stash);
  CHECK(twice.workers[0].memory.recompute == 4 * 4);
}

TEST_CASE("step forecast: mixed devices, shares, and stages with replicas of their own") {
  PlanProblem problem = problem_of(4, 9);
  problem.cluster.devices.push_back({.name = "slow", .memory_bytes = 500, .rates = {{"fp32", 1}}, .memory_bytes_per_second = 1e9});
  problem.cluster.hosts = {{1, 2, 0}, {1, 1, 1}};
  ProfilePoint fast = problem.profile.points[0], slow = fast;
  fast.device = "d", slow.device = "slow";
  for (LayerCost& cost : slow.layers) cost.forward_seconds *= 4, cost.backward_input_seconds *= 4, cost.backward_weight_seconds *= 4;
  problem.profile.points = {fast, slow};
  const StepForecast equal = forecast_step(problem, {.layout = {.dp = 3}});
  CHECK(equal.workers[0].device == "slow");
  CHECK(equal.pipeline_seconds == doctest::Approx(3 * 4 * 24));
  CHECK(forecast_step(problem, {.layout = {.dp = 3, .shares = "4:4:1"}}).pipeline_seconds == doctest::Approx(4 * 4 * 6));
  CHECK_FALSE(equal.fits);
  Candidate uneven{.layout = {.pp = 2, .microbatches = 9, .stages = {{{"l0", "l1", "l2"}, 0, 2}, {{"l3"}, 1, 1}}}};
  uneven.stages = {{0, 0, 0, 1}, {0, 1}};
  const StepForecast replicated = forecast_step(problem, uneven);
  CHECK(replicated.workers[1].device == "slow");
  CHECK(replicated.workers[0].num_ranks == 2);
  CHECK(replicated.pipeline_seconds > 9 * 24);
  CHECK(replicated.pipeline_seconds < 9 * 24 + 2 * 18 + 9);
}

TEST_CASE("step forecast: faster links and devices are never slower") {
  PlanProblem problem = problem_of(8, 64, 2);
  for (const Layout& layout : {Layout{.dp = 8}, Layout{.dp = 8, .zero = 3}, Layout{.dp = 2, .pp = 2, .tp = 2, .microbatches = 4}}) {
    Candidate candidate{.layout = layout};
    if (layout.pp > 1) candidate = even_pipeline(problem, layout, 2);
    PlanProblem better = problem;
    for (Link& link : better.cluster.across.by_exchange) link.bytes_per_second *= 2;
    better.cluster.devices[0].memory_bytes_per_second *= 2;
    CHECK(forecast_step(better, candidate).step_seconds <= forecast_step(problem, candidate).step_seconds);
  }
}

TEST_CASE("step forecast: what is there for a moment counts: gradients on their way, the loss, the start") {
  PlanProblem problem = problem_of(4, 8);
  const int64_t plain = forecast_step(problem, {}).peak_memory_bytes();
  for (ProfilePoint& point : problem.profile.points)
    for (LayerCost& cost : point.layers) cost.working_bytes = 1000;
  CHECK(forecast_step(problem, {}).workers[0].memory.working == 8 * 1000);  // Of the last layer, with all of the stash.
  CHECK(forecast_step(problem, {}).peak_memory_bytes() == plain + 8 * 1000);
  for (ProfilePoint& point : problem.profile.points) point.layers.front().working_bytes = 1'000'000;
  const StepMemory early = forecast_step(problem, {}).workers[0].memory;
  CHECK(early.working < 8'000'000);  // The stash of the layers behind it is gone by then.
  CHECK(early.stash + early.working > 8'000'000);
  // A further backward makes a gradient beside the sum: of the largest layer, 40 bytes.
  const auto added = [&](int accumulate) { return forecast_step(problem, {.layout = {.accumulate = accumulate}}).workers[0].memory; };
  problem = problem_of(4, 8);
  CHECK(added(2).working == added(1).working + 40);
  // One copy lies with rank 0: a limit of a rank counts it whole.
  problem.cluster.shared_memory = true;
  CHECK(forecast_step(problem, {.layout = {.dp = 4}}).workers[0].memory.weights == 40);
  problem.memory_limit_bytes = 100'000;
  CHECK(forecast_step(problem, {.layout = {.dp = 4}}).workers[0].memory.weights == 160);
}

TEST_CASE("strategy memory: the table") {
  const StrategyShape shape{.num_ranks = 4, .optimizer_arrays = 2, .trained_bytes = 400, .frozen_bytes = 40, .largest_unit_bytes = 50};
  const auto of = [&](int zero, bool one_copy = false) {
    StrategyShape asked = shape;
    asked.zero = zero, asked.one_copy = one_copy, asked.has_buckets = true;
    return strategy_memory(asked);
  };
  const auto total = [](const StateBytes& state) { return state.weights + state.gradients + state.optimizer + state.buckets; };
  CHECK(total(of(0)) == 440 + 400 + 800 + 400);
  CHECK(total(of(0, true)) == 110 + 400 + 200);
  CHECK(total(of(1)) == 440 + 400 + 200 + 400);
  CHECK(total(of(2)) == 440 + 100 + 200 + 100);
  CHECK(total(of(3)) == 10 + 100 + 100 + 100 + 200 + 200);
}

}  // namespace
}  // namespace cohort
