#include "cohort/parallel/local/local_steps.h"

#include <doctest/doctest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/torch.h>

#include <atomic>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/parallel/make_strategy.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/threads.h"

namespace cohort {
namespace {

namespace nn = torch::nn;

/// One weight w, whose loss is w times a number: the gradient is that number.
struct OneWeightImpl : nn::Module {
  torch::Tensor w;
  explicit OneWeightImpl(double value) { w = register_parameter("w", torch::full({1}, value)); }
};
TORCH_MODULE(OneWeight);

void make_step(Strategy& strategy, const torch::Tensor& w, double gradient, int64_t mine, int64_t all, bool exchange, double rate = 1) {
  strategy.zero_grad();
  strategy.set_samples(mine, all);
  if (mine > 0) (w * gradient).sum().backward();
  strategy.finish_backward();
  strategy.step({.learning_rate = rate, .exchange = exchange});
}

double value_of(const OneWeight& model) { return model->w.item<double>(); }

std::map<std::string, at::Tensor> saved(Strategy& strategy) {
  std::map<std::string, at::Tensor> pieces;
  for (const FlatPiece& piece : strategy.saved_pieces()) pieces[piece.name] = piece.values.clone();
  return pieces;
}

TEST_CASE("local steps: the weights become the average by samples, and nobody waits in between") {
  std::atomic<bool> rank_0_is_done = false;
  run_thread_ranks(2, [&](Group& group) {
    const int rank = group.rank();
    OneWeight model(rank == 0 ? 10 : 99);  // All start with rank 0's.
    LocalSteps strategy(*model, group, {.rule = {.kind = UpdateRule::Kind::kSgd}});
    CHECK(value_of(model) == 10);
    if (rank == 1)
      while (!rank_0_is_done) std::this_thread::yield();  // A message before the exchange would never be answered.
    for (int step = 0; step < 3; ++step) make_step(strategy, model->w, rank == 0 ? 1 : 4, rank == 0 ? 3 : 1, 4, false);
    CHECK(value_of(model) == (rank == 0 ? 7 : -2));
    CHECK(strategy.statistics().num_exchanges == 0);
    rank_0_is_done = true;
    make_step(strategy, model->w, rank == 0 ? 1 : 4, rank == 0 ? 3 : 1, 4, true);
    // Changes of -4 and -16, weighed 3 : 1.
    CHECK(value_of(model) == 3);
    CHECK(strategy.statistics().num_exchanges == 1);
    // A worker without samples in all of a round counts nothing, whatever its weights.
    if (rank == 1) model->w.data_ptr<float>()[0] = std::numeric_limits<float>::infinity();
    make_step(strategy, model->w, 2, rank == 0 ? 4 : 0, 4, true);
    CHECK(value_of(model) == 1);
  });
}

TEST_CASE("local steps: diloco is algorithm 1 of its paper, and each worker keeps its own momentum") {
  constexpr double kRate = 0.5, kMomentum = 0.8, kInner = 0.9, kStep = 0.25;
  const std::vector<std::vector<double>> gradients{{1, -2, 3, 0.5, 2, 1}, {4, 1, -1, 2, 0, 3}};
  run_thread_ranks(2, [&](Group& group) {
    OneWeight model(1);
    LocalSteps strategy(*model, group,
                        {.rule = {.kind = UpdateRule::Kind::kMomentum, .momentum = kInner}, .outer = OuterOptimizer{kRate, kMomentum}});
    double outer = 1, velocity = 0;
    std::vector<double> inner{0, 0};
    for (size_t round = 0; round < 3; ++round) {
      std::vector<double> weights{outer, outer};
      for (size_t step = 2 * round; step < 2 * round + 2; ++step) {
        make_step(strategy, model->w, gradients[static_cast<size_t>(group.rank())][step], 2, 4, step % 2 == 1, kStep);
        for (size_t rank = 0; rank < 2; ++rank) {
          inner[rank] = kInner * inner[rank] + gradients[rank][step];
          weights[rank] -= kStep * inner[rank];
        }
      }
      const double outer_gradient = outer - (weights[0] + weights[1]) / 2;
      velocity = kMomentum * velocity + outer_gradient;
      outer -= kRate * (outer_gradient + kMomentum * velocity);
      CHECK(value_of(model) == doctest::Approx(outer).epsilon(1e-5));
    }
    const auto pieces = saved(strategy);
    const std::string own = concat("worker-", group.rank(), "/optimizer/w/momentum");
    REQUIRE(pieces.contains(own));
    CHECK(pieces.at(own).item<double>() == doctest::Approx(inner[static_cast<size_t>(group.rank())]).epsilon(1e-5));
    CHECK(pieces.contains("model/w") == (group.rank() == 0));
    CHECK(pieces.contains("outer/optimizer/w/momentum") == (group.rank() == 0));
    if (group.rank() == 0) CHECK(pieces.at("outer/optimizer/w/momentum").item<double>() == doctest::Approx(velocity).epsilon(1e-5));
  });
}

/// Some steps of a small net with uneven shares; what the weights are then.
std::vector<at::Tensor> train(Group& group, const StrategyOptions& options, int steps, int every) {
  nn::Linear net{nullptr};
  at::Tensor x, y;
  {
    const SeededDraws draws(5);  // One thread at a time.
    net = nn::Linear(6, 4);
    x = torch::randn({steps, 12, 6}), y = torch::randn({steps, 12, 4});
  }
  const std::unique_ptr<Strategy> strategy = make_strategy(*net, group, options);
  const int64_t begin = group.rank() == 0 ? 0 : 8, mine = group.size() == 1 ? 12 : group.rank() == 0 ? 8 : 4;
  for (int step = 0; step < steps; ++step) {
    strategy->zero_grad();
    strategy->set_samples(mine, 12);
    const at::Tensor loss = (net(x[step].narrow(0, begin, mine)) - y[step].narrow(0, begin, mine)).square().sum();
    (loss / static_cast<double>(is_local(options.sync) ? mine : 12)).backward();
    strategy->finish_backward();
    strategy->step({.learning_rate = 0.05, .exchange = (step + 1) % every == 0});
  }
  return {net->weight.detach().clone(), net->bias.detach().clone()};
}

double apart(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, (a[i] - b[i]).abs().max().item<double>());
  return most;
}

TEST_CASE("local steps: an average after every step of what is linear is data parallelism; a later one, Adam and an outer step are not") {
  run_thread_ranks(2, [&](Group& group) {
    const UpdateRule sgd{.kind = UpdateRule::Kind::kSgd}, momentum{.kind = UpdateRule::Kind::kMomentum};
    const auto step = train(group, {.rule = sgd, .share_weights = false}, 6, 1);
    CHECK(apart(step, train(group, {.rule = sgd, .sync = parse_sync("local:1")}, 6, 1)) < 1e-6);
    CHECK(apart(step, train(group, {.rule = sgd, .sync = parse_sync("diloco:1"), .outer_lr = 1, .outer_momentum = 0}, 6, 1)) < 1e-6);
    CHECK(apart(step, train(group, {.rule = sgd, .sync = parse_sync("local:3")}, 6, 3)) > 1e-5);
    CHECK(apart(step, train(group, {.rule = sgd, .sync = parse_sync("diloco:1")}, 6, 1)) > 1e-3);
    // Linear in its state too, which starts equal: the average of the workers' momenta is that of the average gradient.
    const auto with_momentum = train(group, {.rule = momentum, .share_weights = false}, 6, 1);
    CHECK(apart(with_momentum, train(group, {.rule = momentum, .sync = parse_sync("local:1")}, 6, 1)) < 1e-6);
    const UpdateRule adam{.kind = UpdateRule::Kind::kAdam};
    CHECK(apart(train(group, {.rule = adam, .share_weights = false}, 6, 1),
                train(group, {.rule = adam, .sync = parse_sync("local:1")}, 6, 1)) > 1e-4);
  });
}

TEST_CASE("local steps: one worker is plain training, bit by bit") {
  Group alone;
  const UpdateRule rule{.kind = UpdateRule::Kind::kAdam};
  CHECK(apart(train(alone, {.rule = rule}, 6, 1), train(alone, {.rule = rule, .sync = parse_sync("local:3")}, 6, 3)) == 0);
}

TEST_CASE("local steps: compressed changes leave all workers the same bits, near those that are not compressed") {
  run_thread_ranks(3, [&](Group& group) {
    const StrategyOptions plain{.rule = {.kind = UpdateRule::Kind::kSgd}, .sync = parse_sync("diloco:2")};
    const auto exact = train(group, plain, 12, 2);
    for (const std::string compress : {"none", "fp16", "int8"}) {
      CAPTURE(compress);
      StrategyOptions options = plain;
      options.compress = compress;
      const auto mine = train(group, options, 12, 2);
      CHECK(apart(mine, exact) < (compress == "none" ? 1e-12 : compress == "fp16" ? 2e-3 : 2e-2));
      CHECK((apart(mine, exact) == 0) == (compress == "none"));
      std::string bits;
      for (const at::Tensor& tensor : mine) bits.append(static_cast<const char*>(tensor.data_ptr()), tensor.nbytes());
      for (const std::string& others : group.all_gather_text(bits, "weights")) CHECK(others == bits);
    }
  });
}

TEST_CASE("local steps: batch norm's running statistics are averaged by samples at an exchange, and counters stay") {
  run_thread_ranks(2, [&](Group& group) {
    nn::BatchNorm1d norm(2);
    LocalSteps strategy(*norm, group, {.rule = {.kind = UpdateRule::Kind::kSgd}});
    const int64_t mine = group.rank() == 0 ? 6 : 2;
    for (int step = 0; step < 2; ++step) {
      strategy.zero_grad();
      strategy.set_samples(mine, 8);
      norm(torch::full({mine, 2}, group.rank() == 0 ? 1.0 : 5.0)).sum().backward();
      strategy.finish_backward();
      strategy.step({.learning_rate = 0, .exchange = step == 1});
    }
    // After two updates by 0.1 each is 0.19 of the observed value.
    CHECK(norm->running_mean[0].item<double>() == doctest::Approx(0.19 * (6 * 1.0 + 2 * 5.0) / 8));
    CHECK(norm->num_batches_tracked.item<int64_t>() == 2);
  });
}

TEST_CASE("local steps: saved state is loaded again, each worker its own, bit by bit") {
  run_thread_ranks(2, [&](Group& group) {
    const LocalStepsOptions options{.rule = {.kind = UpdateRule::Kind::kAdam}, .outer = OuterOptimizer{}, .compress = "int8"};
    const double gradient = group.rank() == 0 ? 1.5 : -0.25;
    OneWeight straight(1), resumed(1);
    LocalSteps first(*straight, group, options), second(*resumed, group, options);
    for (int step = 0; step < 4; ++step) make_step(first, straight->w, gradient * step, 2, 4, step % 2 == 1, 0.1);
    std::map<std::string, at::Tensor> all = saved(first);
    // Rank 0 saves what all ranks share.
    const at::Tensor shared = at::zeros({2});
    if (group.rank() == 0) shared[0] = all.at("model/w")[0], shared[1] = all.at("outer/optimizer/w/momentum")[0];
    group.broadcast(shared, 0, "what all share");
    all["model/w"] = shared.narrow(0, 0, 1).clone(), all["outer/optimizer/w/momentum"] = shared.narrow(0, 1, 1).clone();
    for (FlatPiece& piece : second.loaded_pieces()) {
      CAPTURE(piece.name);
      REQUIRE(all.contains(piece.name));
      piece.values.copy_(all.at(piece.name));
    }
    second.loaded();
    for (int step = 4; step < 8; ++step) {
      make_step(first, straight->w, gradient * step, 2, 4, step % 2 == 1, 0.1);
      make_step(second, resumed->w, gradient * step, 2, 4, step % 2 == 1, 0.1);
      CHECK(value_of(straight) == value_of(resumed));
    }
  });
}

/// Five weights, whose gradient is a number for each of them.
struct FiveWeightsImpl : nn::Module {
  torch::Tensor w;
  FiveWeightsImpl() { w = register_parameter("w", torch::ones({5})); }
};
TORCH_MODULE(FiveWeights);

void make_step(Strategy& strategy, const FiveWeights& model, const std::vector<double>& gradients, int64_t mine, bool exchange) {
  strategy.zero_grad();
  strategy.set_samples(mine, 4);
  (model->w * torch::tensor(gradients, torch::kFloat)).sum().backward();
  strategy.finish_backward();
  strategy.step({.learning_rate = 0.25, .exchange = exchange});
}

/// Of step `step`, from 0, of a rank.
std::vector<double> gradients_of(int64_t step, int rank) {
  std::vector<double> out;
  for (int i = 0; i < 5; ++i) out.push_back(1 + static_cast<double>((step * 3 + i * 5 + rank * 7) % 11) - (rank == 0 ? 4 : 6));
  return out;
}

TEST_CASE("local steps: fragments are exchanged each after a step of its own, by samples since its last exchange") {
  constexpr double kRate = 0.5, kMomentum = 0.8;
  constexpr int64_t kSteps = 4;
  for (const bool has_outer : {false, true})
    run_thread_ranks(2, [&](Group& group) {
      const int rank = group.rank();
      CAPTURE(has_outer);
      FiveWeights model;
      LocalStepsOptions options{.rule = {.kind = UpdateRule::Kind::kSgd}, .steps = kSteps, .fragments = 3};
      if (has_outer) options.outer = OuterOptimizer{kRate, kMomentum};
      LocalSteps strategy(*model, group, options);
      // Fragments of 2, 2 and 1 elements, after steps 1, 2 and 4.
      const std::vector<int> fragment_of{0, 0, 1, 1, 2};
      const std::vector<int64_t> step_of{1, 2, 4};
      std::vector<std::vector<double>> weights(2, std::vector<double>(5, 1));
      std::vector<double> anchor(5, 1), velocity(5, 0);
      std::vector<std::vector<double>> samples(3, {0, 0});
      for (int64_t step = 0; step < 3 * kSteps; ++step) {
        // Rank 0 has fewer samples in odd steps.
        const std::vector<int64_t> mine = step % 2 == 1 ? std::vector<int64_t>{1, 3} : std::vector<int64_t>{2, 2};
        make_step(strategy, model, gradients_of(step, rank), mine[static_cast<size_t>(rank)], step % kSteps == kSteps - 1);
        for (size_t other = 0; other < 2; ++other) {
          const std::vector<double> gradients = gradients_of(step, static_cast<int>(other));
          for (size_t i = 0; i < 5; ++i) weights[other][i] -= 0.25 * gradients[i];
          for (std::vector<double>& window : samples) window[other] += static_cast<double>(mine[other]);
        }
        for (size_t fragment = 0; fragment < 3; ++fragment) {
          if (step % kSteps + 1 != step_of[fragment]) continue;
          const double share = samples[fragment][0] / (samples[fragment][0] + samples[fragment][1]);
          samples[fragment] = {0, 0};
          for (size_t i = 0; i < 5; ++i) {
            if (fragment_of[i] != static_cast<int>(fragment)) continue;
            const double change = share * (weights[0][i] - anchor[i]) + (1 - share) * (weights[1][i] - anchor[i]);
            velocity[i] = kMomentum * velocity[i] - change;
            anchor[i] -= has_outer ? kRate * (-change + kMomentum * velocity[i]) : -change;
            weights[0][i] = weights[1][i] = anchor[i];
          }
          CHECK(strategy.statistics().bytes == 4 * (fragment == 2 ? 1 : 2));
        }
        // At the end of a round all have the last exchanged values, and continue with their own.
        const bool ends = step % kSteps == kSteps - 1;
        for (size_t i = 0; i < 5; ++i) {
          const double expected = ends ? anchor[i] : weights[static_cast<size_t>(rank)][i];
          CHECK(model->w[static_cast<int64_t>(i)].item<double>() == doctest::Approx(expected).epsilon(1e-5));
        }
        if (!ends) continue;
        CHECK(anchor[1] != weights[0][1]);
        strategy.zero_grad();
        CHECK(model->w[1].item<double>() == doctest::Approx(weights[static_cast<size_t>(rank)][1]).epsilon(1e-5));
      }
      CHECK(strategy.statistics().num_exchanges == 9);
    });
}

TEST_CASE("local steps: one fragment equals no fragments, bit by bit, and with many a round sends as much") {
  run_thread_ranks(2, [&](Group& group) {
    const StrategyOptions one{.rule = {.kind = UpdateRule::Kind::kMomentum}, .sync = parse_sync("diloco:3:1")};
    StrategyOptions none = one, many = one;
    none.sync = parse_sync("diloco:3"), many.sync = parse_sync("diloco:3:3");
    CHECK(apart(train(group, one, 9, 3), train(group, none, 9, 3)) == 0);
    CHECK(apart(train(group, one, 9, 3), train(group, many, 9, 3)) > 1e-4);
    std::string bits;
    for (const at::Tensor& tensor : train(group, many, 9, 3)) bits.append(static_cast<const char*>(tensor.data_ptr()), tensor.nbytes());
    for (const std::string& others : group.all_gather_text(bits, "weights")) CHECK(others == bits);
  });
}

TEST_CASE("local steps: with fragments a worker loads its own weights again, bit by bit") {
  run_thread_ranks(2, [&](Group& group) {
    const int rank = group.rank();
    const LocalStepsOptions options{
        .rule = {.kind = UpdateRule::Kind::kAdam}, .outer = OuterOptimizer{}, .compress = "fp16", .steps = 4, .fragments = 3};
    FiveWeights straight, resumed, elsewhere;
    LocalSteps first(*straight, group, options), second(*resumed, group, options), third(*elsewhere, group, options);
    for (int64_t step = 0; step < 8; ++step) make_step(first, straight, gradients_of(step, rank), rank + 1, step % 4 == 3);
    const std::map<std::string, at::Tensor> mine = saved(first);
    const std::string own = concat("worker-", rank, "/weights/w");
    REQUIRE(mine.contains(own));
    REQUIRE(mine.contains(concat("worker-", rank, "/round/3/samples")));
    const auto read = [&](LocalSteps& into, bool with_own) {
      const at::Tensor shared = at::zeros({2, 5});
      if (rank == 0) shared[0].copy_(mine.at("model/w")), shared[1].copy_(mine.at("outer/optimizer/w/momentum"));
      group.broadcast(shared, 0, "what all share");
      for (FlatPiece& piece : into.loaded_pieces()) {
        if (piece.name == "model/w") piece.values.copy_(shared[0]);
        else if (piece.name == "outer/optimizer/w/momentum") piece.values.copy_(shared[1]);
        else if (with_own || piece.name.find("optimizer") != std::string::npos) piece.values.copy_(mine.at(piece.name));
      }
      into.loaded();
    };
    read(second, true);
    CHECK(at::equal(straight->w, resumed->w));
    for (int64_t step = 8; step < 12; ++step) {
      make_step(first, straight, gradients_of(step, rank), rank + 1, step % 4 == 3);
      make_step(second, resumed, gradients_of(step, rank), rank + 1, step % 4 == 3);
      CHECK(at::equal(straight->w, resumed->w));
    }
    // With another number of workers there are no own weights: continue from the exchanged ones.
    read(third, false);
    third.zero_grad();
    CHECK(!at::equal(elsewhere->w, mine.at(own)));
    const at::Tensor all = elsewhere->w.detach().clone();
    group.broadcast(all, 0, "the weights of rank 0");
    CHECK(at::equal(all, elsewhere->w.detach()));
  });
}

TEST_CASE("local steps: ranks with different models are refused before the first step") {
  run_thread_ranks(2, [&](Group& group) {
    nn::Linear net(4, group.rank() + 1);
    CHECK_THROWS_AS(LocalSteps(*net, group, {.rule = {.kind = UpdateRule::Kind::kSgd}}), Error);
  });
}

}  // namespace
}  // namespace cohort
