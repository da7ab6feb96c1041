#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/module.h>

#include "cohort/async/async_statistics.h"
#include "cohort/async/gradient_server.h"
#include "cohort/async/model_queue.h"
#include "cohort/async/packed_tensors.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/parallel/common/flat_piece.h"
#include "cohort/parallel/optimizer/shard_optimizer.h"

namespace cohort {
namespace {

using Kind = UpdateRule::Kind;
constexpr Kind kKinds[] = {Kind::kSgd, Kind::kMomentum, Kind::kNesterov, Kind::kAdam, Kind::kAdamW};

/// Two parameters and a running statistic with a count.
struct Toy : torch::nn::Module {
  Toy() {
    first = register_parameter("first", at::ones({3, 2}));
    second = register_parameter("second", at::full({5}, 2.0));
    mean = register_buffer("mean", at::full({2}, 10.0));
    batches = register_buffer("batches", at::full({}, 0, at::kLong));
  }
  std::vector<at::Tensor> gradients(double value) const { return {at::full({3, 2}, value), at::full({5}, value)}; }
  at::Tensor first, second, mean, batches;
};

WorkItem item_at(int64_t begin, int64_t end, int64_t batch) { return {0, 0, {begin, end}, batch}; }

/// The result of a forward that left the statistic at `mean`.
WorkResult result_of(const Toy& toy, double gradient, double mean) {
  return {.loss = 1, .gradients = toy.gradients(gradient), .buffers = {at::full({2}, mean), at::full({}, 1, at::kLong)}};
}

double value_of(const at::Tensor& tensor) { return tensor.flatten()[0].item<double>(); }

PushOutcome pull_and_push(AsyncMode& mode, const Toy& toy, const WorkItem& item, double gradient, double mean, const StepNumbers& numbers) {
  Assignment assignment{.item = item};
  mode.pull(assignment);
  mode.prepare_push(assignment, result_of(toy, gradient, mean), numbers);
  return mode.push(assignment, numbers);
}

TEST_CASE("a push of a whole step equals the step of the optimizer, bit by bit") {
  for (const Kind kind : kKinds) {
    CAPTURE(static_cast<int>(kind));
    UpdateRule rule{.kind = kind, .weight_decay = 0.01};
    const at::Tensor start = at::randn({1000}), mine = start.clone(), theirs = start.clone();
    PushOptimizer pushes(rule, {{"w", mine}});
    ShardOptimizer steps(rule, {{"w", {1000}, 0, theirs}});
    for (int step = 0; step < 20; ++step) {
      const at::Tensor gradient = at::randn({1000});
      pushes.apply({.weight = 1, .learning_rate = 0.03}, {mine}, {gradient});
      steps.update(0, gradient, 0.03, 1);
    }
    CHECK(at::equal(mine, theirs));
  }
}

TEST_CASE("pushes that add up to a step: sgd moves as the step does, momentum ends as after the step, adam corrects the same bias") {
  for (const Kind kind : kKinds) {
    CAPTURE(static_cast<int>(kind));
    const UpdateRule rule{.kind = kind};  // Without weight decay, which acts on weights that have moved meanwhile.
    const at::Tensor start = at::randn({100}), mine = start.clone(), theirs = start.clone(), gradient = at::randn({100});
    PushOptimizer pushes(rule, {{"w", mine}});
    ShardOptimizer steps(rule, {{"w", {100}, 0, theirs}});
    for (int step = 0; step < 3; ++step) {
      for (int push = 0; push < 8; ++push) pushes.apply({.weight = 0.125, .learning_rate = 0.03}, {mine}, {gradient * 0.125});
      steps.update(0, gradient, 0.03, 1);
    }
    CHECK(pushes.steps()[0] == 3);
    const double moved = (theirs - start).abs().max().item<double>(), apart = (mine - theirs).abs().max().item<double>();
    CHECK(apart < (kind == Kind::kSgd ? 1e-4 : 0.5) * moved);
    const std::vector<FlatPiece> states = steps.state(true);
    for (size_t slot = 0; slot < rule.slots().size(); ++slot)
      CHECK((pushes.arrays()[slot] - states[slot].values).abs().max().item<double>() <
            1e-4 * states[slot].values.abs().max().item<double>());
  }
}

TEST_CASE("clipping applies to the mean gradient of the push, whatever its weight") {
  for (const double weight : {1.0, 0.25}) {
    const at::Tensor weights = at::full({4}, 1.0);
    PushOptimizer optimizer({}, {{"w", weights}});
    const double norm = optimizer.apply({.weight = weight, .learning_rate = 1, .clip_norm = 1}, {weights}, {at::full({4}, 3.0) * weight});
    CHECK(norm == doctest::Approx(6));
    CHECK(value_of(weights) == doctest::Approx(1 - 0.5 * weight));
  }
}

TEST_CASE("a parameter without gradient keeps its value and its state") {
  Toy toy;
  GradientServer server(toy, {.rule = {.kind = Kind::kMomentum, .weight_decay = 0.1}});
  Assignment assignment{.item = item_at(0, 4, 4)};
  server.pull(assignment);
  WorkResult result = result_of(toy, 1, 0);
  result.gradients[1] = at::Tensor();
  server.prepare_push(assignment, std::move(result), {});
  server.push(assignment, {.learning_rate = 1});
  CHECK(value_of(toy.first) != 1);
  CHECK(value_of(toy.second) == 2);
}

TEST_CASE("running statistics: the mean over the samples of one version; a late push moves them towards the worker's") {
  Toy toy;
  GradientServer server(toy, {.rule = {}, .global_batch = 4});
  const StepNumbers numbers{.learning_rate = 0.1};
  std::vector<Assignment> works;
  for (const auto& [begin, end] : {std::pair(0, 1), std::pair(1, 4), std::pair(0, 2)}) {
    works.push_back({.item = item_at(begin, end, 4)});
    server.pull(works.back());
  }
  const double means[] = {20, 30, 0};
  for (size_t i = 0; i < 3; ++i) server.prepare_push(works[i], result_of(toy, 0.1, means[i]), numbers);
  CHECK(value_of(toy.mean) == 10);
  server.push(works[0], numbers);
  server.push(works[1], numbers);
  CHECK(value_of(toy.mean) == doctest::Approx(0.25 * 20 + 0.75 * 30));
  CHECK(server.push(works[2], numbers).staleness == 2);
  CHECK(value_of(toy.mean) == doctest::Approx(0.5 * 27.5));
  CHECK(toy.batches.item<int64_t>() == 1);
  pull_and_push(server, toy, item_at(0, 4, 4), 0.1, 7, numbers);
  CHECK(value_of(toy.mean) == 7);
}

TEST_CASE("staleness is counted in pushes and in steps") {
  Toy toy;
  GradientServer server(toy, {.rule = {}, .global_batch = 4});
  Assignment late{.item = item_at(0, 1, 4)};
  server.pull(late);
  server.prepare_push(late, result_of(toy, 1, 1), {});
  for (int i = 0; i < 3; ++i) CHECK(pull_and_push(server, toy, item_at(0, 2, 4), 1, 1, {}).staleness == 0);
  const PushOutcome outcome = server.push(late, {});
  CHECK(outcome.staleness == 3);
  CHECK(outcome.late_steps == 1.5);
  CHECK(server.version() == 4);
}

TEST_CASE("the rate factor applies to every push, late or not") {
  for (const int num_before : {0, 3}) {
    Toy toy;
    GradientServer server(toy, {.rule = {}, .rate_factor = 0.1, .global_batch = 4});
    Assignment late{.item = item_at(0, 2, 4)};
    server.pull(late);
    server.prepare_push(late, result_of(toy, 0.25, 1), {});
    for (int i = 0; i < num_before; ++i) pull_and_push(server, toy, item_at(0, 4, 4), 2, 1, {.learning_rate = 0.5});
    const double before = value_of(toy.first);
    CHECK(server.push(late, {.learning_rate = 1}).staleness == num_before);
    CHECK(before - value_of(toy.first) == doctest::Approx(0.025));
  }
}

TEST_CASE("queue: one worker makes the steps; two merge by samples, or replace") {
  for (const Kind kind : kKinds) {
    const UpdateRule rule{.kind = kind};
    Toy queued, served;
    ModelQueue queue(queued, {.rule = rule});
    GradientServer server(served, {.rule = rule});
    for (int step = 0; step < 5; ++step) {
      pull_and_push(queue, queued, item_at(0, 4, 4), 0.3, step, {.learning_rate = 0.1, .clip_norm = 0.5});
      pull_and_push(server, served, item_at(0, 4, 4), 0.3, step, {.learning_rate = 0.1, .clip_norm = 0.5});
    }
    queue.copy_to_module();
    CHECK(at::equal(queued.first, served.first));
    CHECK(at::equal(queued.mean, served.mean));
  }
  for (const bool replaces : {false, true}) {
    Toy toy;
    ModelQueue queue(toy, {.rule = {}, .global_batch = 4, .capacity = 2, .replaces = replaces});
    Assignment a{.item = item_at(0, 2, 4)}, b{.item = item_at(2, 4, 4)};
    queue.pull(a);
    queue.prepare_push(a, result_of(toy, 0.5, 1), {.learning_rate = 1});  // A mean gradient of 1: the model at 0.
    queue.pull(b);
    CHECK(value_of(toy.first) == 1);                                    // Both were served the first model.
    queue.prepare_push(b, result_of(toy, 1, 1), {.learning_rate = 1});  // 2: at -1.
    queue.push(a, {});
    queue.copy_to_module();
    CHECK(value_of(toy.first) == doctest::Approx(replaces ? 0 : 0.5));
    CHECK(queue.push(b, {}).staleness == 1);
    queue.copy_to_module();
    CHECK(value_of(toy.first) == doctest::Approx(replaces ? -1 : -0.25));
  }
}

TEST_CASE("queue: first in first out or newest, and never more than its capacity") {
  for (const bool newest : {false, true}) {
    Toy toy;
    ModelQueue queue(toy, {.rule = {}, .global_batch = 4, .capacity = 2, .newest = newest, .replaces = true});
    std::vector<Assignment> assignments(4);
    for (Assignment& assignment : assignments) {
      assignment.item = item_at(0, 4, 4);
      queue.pull(assignment);
      queue.prepare_push(assignment, result_of(toy, static_cast<double>(&assignment - assignments.data()), 1), {.learning_rate = 1});
    }
    for (Assignment& assignment : assignments) queue.push(assignment, {});
    CHECK(queue.state()["waiting"].size() == 2);
    Assignment next{.item = item_at(0, 4, 4)};
    queue.pull(next);
    CHECK(value_of(toy.first) == (newest ? 1 - 3 : 1 - 2));
    CHECK(next.base_version == (newest ? 4 : 3));
  }
}

/// Saves a mode's pieces and state, and loads them into another.
template <typename Mode, typename Options>
void check_goes_on(const Options& options) {
  Toy toy, again;
  Mode mode(toy, options), other(again, options);
  const StepNumbers numbers{.learning_rate = 0.1};
  for (int i = 0; i < 3; ++i) pull_and_push(mode, toy, item_at(0, 2, 4), 0.1 * i, i, numbers);
  mode.copy_to_module();
  const std::vector<FlatPiece> saved = mode.saved_pieces();
  const Json state = Json::parse(mode.state().dump());
  std::vector<FlatPiece> loaded = other.loaded_pieces(state, "test");
  REQUIRE(loaded.size() == saved.size());
  for (size_t i = 0; i < saved.size(); ++i) {
    CHECK(saved[i].name == loaded[i].name);
    loaded[i].values.copy_(saved[i].values);
  }
  {
    at::NoGradGuard no_grad;
    for (const auto& [to, from] : {std::pair(again.first, toy.first), std::pair(again.second, toy.second)}) at::Tensor(to).copy_(from);
    again.mean.copy_(toy.mean);
    again.batches.copy_(toy.batches);
  }
  other.loaded(state);
  for (int i = 0; i < 3; ++i) {
    pull_and_push(mode, toy, item_at(0, 1, 4), 0.2 * i, i, numbers);
    pull_and_push(other, again, item_at(0, 1, 4), 0.2 * i, i, numbers);
  }
  mode.copy_to_module(), other.copy_to_module();
  CHECK(at::equal(toy.first, again.first));
  CHECK(at::equal(toy.mean, again.mean));
  CHECK(mode.state() == other.state());
  for (const char* key : {"version", "samples"}) {
    Json bad = state;
    bad[key] = "x";
    CHECK_THROWS_AS(other.loaded_pieces(bad, "test"), Error);
  }
  CHECK_THROWS_AS(other.loaded_pieces(Json::object(), "test"), Error);
}

TEST_CASE("modes continue from their saved state") {
  for (const Kind kind : {Kind::kSgd, Kind::kMomentum, Kind::kAdam}) {
    check_goes_on<GradientServer>(GradientServerOptions{.rule = {.kind = kind}, .global_batch = 4});
    for (const char* compress : {"fp16", "int8"})
      check_goes_on<GradientServer>(GradientServerOptions{.rule = {.kind = kind}, .global_batch = 4, .compress = compress});
    check_goes_on<ModelQueue>(ModelQueueOptions{.rule = {.kind = kind}, .global_batch = 4, .capacity = 3});
  }
}

TEST_CASE("packed tensors round-trip, also empty and undefined ones") {
  const std::vector<at::Tensor> from{at::randn({3}), at::Tensor(), at::full({2}, 7, at::kLong), at::randn({0})};
  const std::vector<at::Tensor> to{at::ones({3}), at::Tensor(), at::full({2}, 0, at::kLong), at::randn({0})};
  unpack(packed(from), to);
  CHECK(at::equal(from[0], to[0]));
  CHECK(at::equal(from[2], to[2]));
  CHECK(packed_bytes(from) == 12 + 16);
  CHECK_THROWS_AS(unpack(packed(from), {at::ones({2})}), Error);
}

TEST_CASE("async statistics: staleness in bins, median and 99th percentile, and a state that round-trips") {
  AsyncStatistics statistics(3);
  for (int i = 0; i < 100; ++i)
    statistics.add_push(i % 2, item_at(0, 2, 4), {.staleness = i < 60 ? i % 2 : i < 98 ? 5 : 40, .late_steps = 1});
  statistics.worker(1).waiting_seconds = 0.1 + 0.2;
  statistics.worker(1).left = 2, statistics.worker(1).pushing_seconds = 0.5;
  statistics.add_bytes(5, 6);
  const AsyncRecord record = statistics.record();
  CHECK(record.pushes == 100);
  CHECK(record.samples == 200);
  CHECK(record.staleness_from == std::vector<int64_t>{0, 1, 4, 32});
  CHECK(record.pushes_of_staleness == std::vector<int64_t>{30, 30, 38, 2});
  CHECK(record.staleness_median == 1);
  CHECK(record.staleness_tail == 40);
  AsyncStatistics again(3);
  again.load(Json::parse(statistics.state().dump()), "test");
  CHECK(again.state() == statistics.state());
  Json earlier = statistics.state();  // Earlier versions had a column of dropped pushes, and before that not the last two columns.
  for (Json& row : earlier["workers"]) {
    const Json own = row;
    row = Json::array();
    for (size_t at = 0; at < own.size(); ++at) {
      if (at == 2) row.push_back(1);
      row.push_back(own[at]);
    }
  }
  AsyncStatistics from_earlier(3), from_first(3);
  from_earlier.load(earlier, "test");
  CHECK(from_earlier.state() == statistics.state());
  for (Json& row : earlier["workers"]) row.erase(row.size() - 1), row.erase(row.size() - 1);
  from_first.load(earlier, "test");
  CHECK(from_first.record().pushes == 100);
  CHECK(from_first.state()["workers"][1][5] == statistics.state()["workers"][1][5]);
  CHECK_THROWS_AS(AsyncStatistics(4).load(statistics.state(), "test"), Error);
  CHECK_THROWS_AS(AsyncStatistics(3).load(Json(1), "test"), Error);
}

}  // namespace
}  // namespace cohort
