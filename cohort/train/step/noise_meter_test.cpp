#include "cohort/train/step/noise_meter.h"

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <array>
#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/parallel/make_strategy.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/threads.h"

namespace cohort {
namespace {

namespace nn = torch::nn;

/// A weight used twice, one that is never used, a frozen one, and one large enough to be a bucket of its own.
struct NetImpl : nn::Module {
  nn::Linear first{nullptr}, second{nullptr}, never{nullptr};
  torch::Tensor frozen;
  NetImpl() {
    const SeededDraws draws(5);
    first = register_module("first", nn::Linear(24, 200));
    second = register_module("second", nn::Linear(200, 24));
    never = register_module("never", nn::Linear(3, 2));
    frozen = register_parameter("frozen", torch::randn({24}), /*requires_grad=*/false);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor h = second(torch::tanh(first(x))) + frozen;
    return h + h.matmul(first->weight.t()).matmul(first->weight) / 200;
  }
};
TORCH_MODULE(Net);

/// Sizes of the pieces, [rank][micro-batch]. A rank may have none in a micro-step.
using Pieces = std::vector<std::vector<int64_t>>;

torch::Tensor rows_of(int64_t step, int64_t count) {
  const SeededDraws draws(900 + static_cast<uint64_t>(step));
  return torch::randn({count, 24});
}

int64_t total_of(const Pieces& pieces) {
  int64_t total = 0;
  for (const auto& rank : pieces)
    for (const int64_t piece : rank) total += piece;
  return total;
}

torch::Tensor mean_loss(Net& net, const torch::Tensor& rows) { return net->forward(rows).pow(2).mean(1).mean(0); }

std::vector<torch::Tensor> gradients_of(Net& net, const torch::Tensor& rows) {
  net->zero_grad();
  mean_loss(net, rows).backward();
  std::vector<torch::Tensor> out;
  for (const torch::Tensor& parameter : net->parameters())
    if (parameter.grad().defined()) out.push_back(parameter.grad().to(torch::kDouble).clone());
  return out;
}

double squared(const std::vector<torch::Tensor>& gradients) {
  double sum = 0;
  for (const torch::Tensor& one : gradients) sum += one.square().sum().item<double>();
  return sum;
}

struct Expected {
  double small_batch = 0, small_squared = 0, large_squared = 0;
};
/// From the definition, in one process, on the first step's weights.
Expected by_definition(const Pieces& pieces) {
  Net net;
  const int64_t total = total_of(pieces);
  const torch::Tensor rows = rows_of(0, total);
  Expected out{.large_squared = squared(gradients_of(net, rows))};
  int64_t begin = 0;
  double num_pieces = 0;
  for (const auto& rank : pieces)
    for (const int64_t size : rank) {
      if (size == 0) continue;
      out.small_squared += squared(gradients_of(net, rows.narrow(0, begin, size))) * static_cast<double>(size) / static_cast<double>(total);
      begin += size;
      ++num_pieces;
    }
  out.small_batch = static_cast<double>(total) / num_pieces;
  return out;
}

struct Setup {
  std::string name;
  int zero = 0;
  bool share_weights = false;
  std::string compress = "none";
  double clip_norm = 0;
};

struct Outcome {
  std::vector<std::optional<NoiseRecord>> readings;
  std::vector<torch::Tensor> weights;
  std::vector<double> norms;
};

/// Trains `steps` steps on one rank; `every` 0: no meter.
Outcome train_rank(Group& group, const Pieces& pieces, const Setup& setup, int64_t every, int64_t steps, double scale = 1) {
  Net net;
  StrategyOptions options{.zero = setup.zero, .rule = {.kind = UpdateRule::Kind::kMomentum}, .compress = setup.compress};
  options.share_weights = setup.share_weights;
  options.bucket_bytes = 8000;
  const auto strategy = make_strategy(*net, group, options);
  std::unique_ptr<NoiseMeter> meter;
  if (every > 0)
    meter = std::make_unique<NoiseMeter>(*net, *strategy, group,
                                         NoiseMeterOptions{.every = every, .exchange_exactly = setup.compress != "none"});
  const std::vector<int64_t>& mine = pieces[static_cast<size_t>(group.rank())];
  const int64_t total = total_of(pieces);
  int64_t start = 0;
  for (int rank = 0; rank < group.rank(); ++rank)
    for (const int64_t piece : pieces[static_cast<size_t>(rank)]) start += piece;
  size_t last = mine.size();
  for (size_t i = 0; i < mine.size(); ++i)
    if (mine[i] > 0) last = i;
  Outcome out;
  for (int64_t step = 0; step < steps; ++step) {
    const torch::Tensor rows = rows_of(step, total);
    strategy->zero_grad();
    strategy->set_control(0, 1);
    strategy->set_gradient_factor(1 / scale);
    if (meter) meter->begin_step(step, total, 1 / scale);
    int64_t begin = start;
    for (size_t i = 0; i < mine.size(); ++i) {
      if (mine[i] == 0) continue;
      const torch::Tensor loss =
          mean_loss(net, rows.narrow(0, begin, mine[i])) * (scale * static_cast<double>(mine[i]) / static_cast<double>(total));
      begin += mine[i];
      strategy->set_sync(i == last);
      if (meter) meter->begin_piece(mine[i]);
      loss.backward();
    }
    if (last == mine.size()) strategy->exchange_without_backward();
    strategy->finish_backward();
    if (strategy->control_sum(0) != static_cast<float>(group.size())) throw std::runtime_error("another control number was lost");
    const StepOutcome outcome =
        strategy->step({.learning_rate = 0.05, .clip_norm = meter ? meter->clip_norm(setup.clip_norm) : setup.clip_norm});
    if (setup.clip_norm > 0) out.norms.push_back(outcome.gradient_norm);
    out.readings.push_back(meter ? meter->end_step(outcome) : std::nullopt);
  }
  strategy->gather_weights();
  for (const torch::Tensor& parameter : net->parameters()) out.weights.push_back(parameter.detach().clone());
  strategy->release_weights();
  group.barrier();
  return out;
}

std::vector<Outcome> train_all(const Pieces& pieces, const Setup& setup, int64_t every, int64_t steps, double scale = 1) {
  std::vector<Outcome> all(pieces.size());
  run_thread_ranks(static_cast<int>(pieces.size()),
                   [&](Group& group) { all[static_cast<size_t>(group.rank())] = train_rank(group, pieces, setup, every, steps, scale); });
  return all;
}

const std::vector<Setup> kSetups = {{"replicated"},
                                    {"shared", 0, true},
                                    {"zero 1", 1},
                                    {"zero 2", 2},
                                    {"zero 3", 3},
                                    {"replicated, clipped", 0, false, "none", 0.05},
                                    {"shared, clipped", 0, true, "none", 0.05},
                                    {"zero 3, clipped", 3, false, "none", 0.05},
                                    {"int8", 0, false, "int8"},
                                    {"top-k", 0, false, "topk:0.1"}};

TEST_CASE("noise meter: the norms are those of the definition, in every strategy, whatever the pieces") {
  const std::vector<Pieces> cases = {
      {{4, 4}}, {{3, 2, 2}}, {{4}, {4}}, {{7}, {1}}, {{3, 3}, {3, 2}}, {{5}, {2}, {1}}, {{2, 1}, {2, 0}, {0, 0}}};
  for (const Pieces& pieces : cases) {
    const Expected expected = by_definition(pieces);
    for (const Setup& setup : kSetups) {
      CAPTURE(setup.name);
      CAPTURE(pieces.size());
      CAPTURE(total_of(pieces));
      const std::vector<Outcome> all = train_all(pieces, setup, 1, 1);
      for (const Outcome& one : all) {
        REQUIRE(one.readings[0].has_value());
        const NoiseRecord& reading = *one.readings[0];
        CHECK(reading.step == 1);
        CHECK(reading.large_batch == static_cast<double>(total_of(pieces)));
        CHECK(reading.small_batch == doctest::Approx(expected.small_batch));
        CHECK(reading.small_squared == doctest::Approx(expected.small_squared).epsilon(1e-5));
        CHECK(reading.large_squared == doctest::Approx(expected.large_squared).epsilon(1e-5));
        CHECK(reading.trace == all[0].readings[0]->trace);
      }
    }
  }
}

TEST_CASE("noise meter: the training is bitwise the same with it") {
  for (const Pieces& pieces : std::vector<Pieces>{{{3, 3}, {3, 2}}, {{5}, {2}, {0}}, {{4, 4}}})
    for (const Setup& setup : kSetups) {
      CAPTURE(setup.name);
      CAPTURE(pieces.size());
      const std::vector<Outcome> without = train_all(pieces, setup, 0, 4), with = train_all(pieces, setup, 1, 4);
      for (size_t rank = 0; rank < pieces.size(); ++rank) {
        CHECK(without[rank].norms == with[rank].norms);
        REQUIRE(without[rank].weights.size() == with[rank].weights.size());
        for (size_t i = 0; i < with[rank].weights.size(); ++i) CHECK(torch::equal(without[rank].weights[i], with[rank].weights[i]));
      }
    }
}

TEST_CASE("noise meter: only every N-th step, unscaled, and nothing from one piece or an infinity") {
  const Pieces pieces = {{4}, {3}};
  const std::vector<Outcome> all = train_all(pieces, {"replicated"}, 3, 7);
  for (int64_t step = 0; step < 7; ++step) CHECK(all[0].readings[static_cast<size_t>(step)].has_value() == (step == 2 || step == 5));
  CHECK(all[1].readings[5]->step == 6);
  const std::vector<Outcome> plain = train_all(pieces, {"shared", 0, true}, 1, 1),
                             scaled = train_all(pieces, {"shared", 0, true}, 1, 1, 1024);
  CHECK(scaled[0].readings[0]->small_squared == doctest::Approx(plain[0].readings[0]->small_squared).epsilon(1e-6));
  CHECK(scaled[0].readings[0]->large_squared == doctest::Approx(plain[0].readings[0]->large_squared).epsilon(1e-6));
  CHECK_FALSE(train_all({{4}, {0}}, {"zero 2", 2}, 1, 1)[1].readings[0].has_value());
  CHECK_FALSE(train_all({{4, 3}}, {"replicated"}, 1, 1, 1e45)[0].readings[0].has_value());  // Infinite gradients.
}

TEST_CASE("noise meter: its state goes into a checkpoint and back") {
  run_thread_ranks(1, [&](Group& group) {
    Net net;
    const auto strategy = make_strategy(*net, group, {.rule = {.kind = UpdateRule::Kind::kSgd}});
    NoiseMeter meter(*net, *strategy, group, {});
    meter.load(Json{{"measurements", 7}, {"gradient_squared", 0.5}, {"trace", 20.0}});
    if (meter.recent().noise_scale() != 40 || meter.recent().num_steps() != 7 || meter.state()["trace"] != 20.0)
      throw std::runtime_error("the averages did not come back");
  });
}

}  // namespace
}  // namespace cohort
