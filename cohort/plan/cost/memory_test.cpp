#include "cohort/plan/cost/memory.h"

#include <doctest/doctest.h>

#include "cohort/plan/cost/step_forecast.h"

namespace cohort {
namespace {

/// Four layers in a row of 1000 weights; 4, 6, 2 and 3 bytes a sample; with `measured` of a machine of two here.
PlanProblem problem_of(int64_t batch, int64_t limit) {
  PlanProblem problem{.global_batch = batch, .optimizer_arrays = 2, .memory_limit_bytes = limit};
  problem.profile.model = "chain";
  ProfilePoint point{.micro_batch = 1};
  for (int layer = 0; layer < 4; ++layer) {
    const int64_t outputs[] = {4, 6, 2, 3};
    problem.profile.layers.push_back({.name = "l" + std::to_string(layer), .kind = "linear", .num_trained = 1000});
    problem.profile.edges.emplace_back(layer - 1, layer);
    point.layers.push_back({1, 1, 1, 1, 1, 0, outputs[layer]});
  }
  problem.profile.points = {point};
  problem.cluster.devices = {{.name = "d", .memory_bytes = INT64_C(1) << 40, .rates = {{"fp32", 1}}, .memory_bytes_per_second = 1e9}};
  problem.cluster.hosts = {{1, 2, 0}};
  for (Link& link : problem.cluster.inside.by_exchange) link = {0, 0, 1e9};
  problem.cluster.across = problem.cluster.inside;
  problem.profile.measured_on = {problem.cluster};
  return problem;
}

Candidate pipeline() { return {.layout = {.pp = 2, .schedule = "1f1b", .microbatches = 2}, .stages = {{0, 0, 1, 1}, {0, 1}}}; }

TEST_CASE("a chunk of the evaluation has the size of a step, within limits, and under a limit that of a micro-batch") {
  CHECK(evaluation_samples(64, 1, 16, false) == 64);
  CHECK(evaluation_samples(1, 1, 1, false) == 8);
  CHECK(evaluation_samples(4096, 1, 1024, false) == 250);
  CHECK(evaluation_samples(4096, 32, 1, false) == 128);
  CHECK(evaluation_samples(64, 1, 16, true) == 16);
  CHECK(evaluation_samples(4096, 1, 1024, true) == 250);
  CHECK(evaluation_samples(1, 1, 0, true) == 1);
}

TEST_CASE("a forward alone holds what is still to be read") {
  Profile profile;
  for (const int64_t bytes : {10, 100, 1, 7}) profile.layers.push_back({.output_bytes = bytes});
  profile.edges = {{-1, 0}, {0, 1}, {1, 2}, {2, 3}};
  CHECK(forward_only_bytes(profile, {0, 1, 2, 3}) == 10 + 2 * 100);
  CHECK(forward_only_bytes(profile, {2, 3}) == 1 + 2 * 7);
  profile.edges.emplace_back(0, 3);  // A skip around the two in the middle.
  profile.layers[2].output_bytes = 200;
  CHECK(forward_only_bytes(profile, {0, 1, 2, 3}) == 10 + 100 + 2 * 200);
  profile.layers[3].output_bytes = 900;  // Of the answer the loss makes another.
  CHECK(evaluation_bytes(profile, {3}, 1) == 2 * 900);
  CHECK(evaluation_bytes(profile, {3}, 2) == 3 * 2 * 900);
  CHECK(evaluation_bytes(profile, {0}, 1) == 2 * 10);
}

TEST_CASE("step forecast: the text sample of a divided model takes a whole one beside the part, on rank 0 alone") {
  PlanProblem problem = problem_of(4, 1 << 20);
  const StepForecast without = forecast_step(problem, pipeline());
  problem.writes_text = true;
  const StepForecast with = forecast_step(problem, pipeline());
  const StepMemory& end = with.workers[0].memory;
  const int64_t stays = end.weights + end.gradients + end.optimizer + end.buckets, pages = end.buffers;
  CHECK(end.total() == stays + pages + 4 * 4000 + (4 + 2 * 6));  // The whole model, and a sample at its widest.
  CHECK(with.workers[0].memory.total() > without.workers[0].memory.total());
  CHECK(with.workers[1].memory.total() == without.workers[1].memory.total());
  const Candidate single{.layout = {}};
  CHECK(forecast_step(problem, single).peak_memory_bytes() == forecast_step(problem_of(4, 1 << 20), single).peak_memory_bytes());
}

TEST_CASE("step forecast: an evaluation of larger pieces than a step has counts, where no limit makes them smaller") {
  Candidate small{.layout = {.accumulate = 4}};
  PlanProblem problem = problem_of(4, 0);
  const int64_t free = forecast_step(problem, small).peak_memory_bytes();
  problem.memory_limit_bytes = 1 << 20;
  const int64_t limited = forecast_step(problem, small).peak_memory_bytes();
  for (LayerCost& cost : problem.profile.points[0].layers) cost.output_bytes *= 1000;
  const int64_t wide_limited = forecast_step(problem, small).peak_memory_bytes();
  problem.memory_limit_bytes = 0;
  const int64_t wide_free = forecast_step(problem, small).peak_memory_bytes();
  CHECK(free >= limited);
  CHECK(wide_free - wide_limited > 6 * 16000);  // Eight samples at their widest, and one.
}

}  // namespace
}  // namespace cohort
