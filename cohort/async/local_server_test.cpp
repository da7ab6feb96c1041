#include "cohort/async/local_server.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <doctest/doctest.h>
#include <torch/nn/module.h>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"

namespace cohort {

TEST_CASE("an exchange takes place with a quorum after the grace time, and at once if nobody else can push") {
  QuorumGate gate(2, 0.5);
  CHECK(!gate.is_open(10, false));  // No pushes.
  gate.add(10);
  CHECK(!gate.is_open(1000, true));
  CHECK(gate.remaining_seconds(1000) > 1e300);
  CHECK(gate.is_open(10, false));  // All others are lost.
  gate.add(11);
  CHECK(!gate.is_open(11.25, true));
  CHECK(gate.remaining_seconds(11.25) == 0.25);
  gate.add(11.25);  // A push within the grace time does not extend it.
  CHECK(gate.remaining_seconds(11.25) == 0.25);
  CHECK(gate.is_open(11.5, true));
  CHECK(gate.is_open(11.25, false));
  gate.clear();
  CHECK(!gate.is_open(12, false));
  gate.add(12);
  CHECK(!gate.is_open(20, true));
  QuorumGate at_once(1, 0);
  at_once.add(3);
  CHECK(at_once.is_open(3, true));
}

namespace {

struct Toy : torch::nn::Module {
  Toy() {
    weight = register_parameter("weight", at::ones({3, 2}));
    mean = register_buffer("mean", at::full({2}, 10.0));
    batches = register_buffer("batches", at::full({}, 0, at::kLong));
  }
  at::Tensor weight, mean, batches;
};

double value_of(const at::Tensor& tensor) { return tensor.flatten()[0].item<double>(); }

WorkItem item_at(int share, int64_t samples) { return {0, share, {0, samples}, 4}; }

/// The push of a worker whose weights moved by `change` and whose statistic is `mean`, computed on the newest version.
Assignment work_of(LocalServer& server, int share, int64_t samples, double change, double mean) {
  Assignment work{.item = item_at(share, samples)};
  server.pull(work);
  server.prepare_push(work, {.loss = 1, .gradients = {at::full({6}, change)}, .buffers = {at::full({2}, mean), at::full({}, 7, at::kLong)}},
                      {});
  return work;
}

TEST_CASE("an exchange of a quorum: changes and buffers by samples, and a late one in the next") {
  Toy toy;
  LocalServer server(toy, {.outer = std::nullopt, .global_batch = 8});
  Assignment late = work_of(server, 2, 8, 6, 1), first = work_of(server, 0, 12, 1, 2), second = work_of(server, 1, 4, 5, 4);
  const std::vector<PushOutcome> outcomes = server.merge({&first, &second});
  CHECK(outcomes.at(1).staleness == 0);
  server.copy_to_module();
  CHECK(value_of(toy.weight) == 1 + (12 * 1.0 + 4 * 5.0) / 16);
  CHECK(value_of(toy.mean) == (12 * 2.0 + 4 * 4.0) / 16);
  CHECK(toy.batches.item<int64_t>() == 7);
  Assignment third = work_of(server, 0, 8, -1, 3);
  const std::vector<PushOutcome> next = server.merge({&third, &late});
  CHECK(next.at(0).staleness == 0);
  CHECK(next.at(1).staleness == 2);
  CHECK(next.at(1).late_steps == 2);
  server.copy_to_module();
  CHECK(value_of(toy.weight) == 3 + (8 * -1.0 + 8 * 6.0) / 16);
  CHECK(server.version() == 4);
  const AppliedPush push = combined_push({&third, &late});
  CHECK(push.item.num_samples() == 16);
  CHECK(push.loss / push.item.weight() == doctest::Approx(1));
}

TEST_CASE("an exchange of a quorum: diloco's outer step, and a state that round-trips") {
  const LocalServerOptions options{.outer = OuterOptimizer{0.5, 0.8}, .global_batch = 4};
  Toy toy, again;
  LocalServer server(toy, options), other(again, options);
  double weight = 1, velocity = 0;
  for (const double change : {2.0, -3.0}) {
    Assignment work = work_of(server, 0, 4, change, 1);
    server.merge({&work});
    velocity = 0.8 * velocity - change;
    weight -= 0.5 * (-change + 0.8 * velocity);
    server.copy_to_module();
    CHECK(value_of(toy.weight) == doctest::Approx(weight));
  }
  const Json state = Json::parse(server.state().dump());
  const std::vector<FlatPiece> saved = server.saved_pieces();
  std::vector<FlatPiece> loaded = other.loaded_pieces(state, "test");
  REQUIRE(saved.size() == 1);
  CHECK(saved[0].name == "outer/optimizer/weight/momentum");
  loaded.at(0).values.copy_(saved[0].values);
  {
    const at::NoGradGuard no_grad;
    again.weight.copy_(toy.weight), again.mean.copy_(toy.mean), again.batches.copy_(toy.batches);
  }
  other.loaded(state);
  CHECK(other.version() == 2);
  for (LocalServer* const one : {&server, &other}) {
    Assignment work = work_of(*one, 0, 4, 1, 5);
    one->merge({&work});
    one->copy_to_module();
  }
  CHECK(at::equal(toy.weight, again.weight));
  CHECK(at::equal(toy.mean, again.mean));
  for (const Json& bad : {Json(3), Json::object(), Json{{"version", -1}, {"samples", 1}}, Json{{"version", 1}, {"samples", "x"}}})
    CHECK_THROWS_AS(other.loaded_pieces(bad, "test"), Error);
}

TEST_CASE("a worker of a quorum pushes the change of its weights by its own optimizer") {
  Toy toy;
  LocalWorker worker(toy, {.kind = UpdateRule::Kind::kMomentum, .momentum = 0.5});
  double weight = 1, velocity = 0;
  for (int round = 0; round < 2; ++round) {
    worker.begin();
    const double base = weight;
    for (const double gradient : {1.0, 3.0}) {
      // Half of the batch: the loss and gradient of a work item are its contribution to the step's.
      worker.step(item_at(0, 2), {.loss = 0.5 * gradient, .gradients = {at::full({3, 2}, 0.5 * gradient)}, .buffers = {}},
                  {.learning_rate = 0.25});
      velocity = 0.5 * velocity + gradient;
      weight -= 0.25 * velocity;
    }
    const WorkResult change = worker.end();
    CHECK(value_of(change.gradients.at(0)) == doctest::Approx(weight - base));
    CHECK(change.loss == 2);
    CHECK(value_of(change.buffers.at(0)) == 10);
  }
  CHECK(value_of(worker.pieces().at(0).values) == doctest::Approx(velocity));
}

}  // namespace

}  // namespace cohort
