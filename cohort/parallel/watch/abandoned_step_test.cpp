// An exception that ends backward() on some ranks: all drop the step, and train on as if it had not been there.
#include <doctest/doctest.h>
#include <torch/torch.h>

#include <algorithm>
#include <stdexcept>

#include "cohort/base/fail.h"
#include "cohort/parallel/make_strategy.h"
#include "cohort/parallel/strategy/data_parallel.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/threads.h"

namespace cohort {
namespace {

namespace nn = torch::nn;

/// Where the exception comes from: forward, backward before any gradient, or backward when those of the last layer have been exchanged.
enum class Place { kForward, kEarly, kLate };

struct NetImpl : nn::Module {
  nn::Linear first{nullptr}, second{nullptr}, third{nullptr};
  explicit NetImpl(int64_t width) {
    const SeededDraws draws(3);
    first = register_module("first", nn::Linear(40, width));
    second = register_module("second", nn::Linear(width, width));
    third = register_module("third", nn::Linear(width, 4));
  }
  torch::Tensor forward(const torch::Tensor& x, const Place* fails) {
    if (fails && *fails == Place::kForward) throw std::runtime_error("the test's own");
    const auto break_here = [](const torch::Tensor& tensor) {
      tensor.register_hook([](const torch::Tensor&) { throw std::runtime_error("the test's own"); });
    };
    const torch::Tensor hidden = torch::tanh(first(x));
    if (fails && *fails == Place::kLate) break_here(hidden);
    const torch::Tensor out = third(torch::tanh(second(hidden)));
    if (fails && *fails == Place::kEarly) break_here(out);
    return out;
  }
};
TORCH_MODULE(Net);

torch::Tensor rows(int64_t step, int rank) {
  const SeededDraws draws(static_cast<uint64_t>(100 * step + rank));
  return torch::randn({6, 40});
}

struct Fault {
  int64_t step = 2;
  std::vector<Place> places;  ///< One a rank.
  std::vector<int> ranks;     ///< That fail; the others make the step.
  bool says_so = true;        ///< They call abandon_step() at once.

  const Place* at(int64_t number, int rank) const {
    const bool mine = number == step && std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
    return mine ? &places[static_cast<size_t>(rank)] : nullptr;
  }
};

constexpr int64_t kSteps = 6;

/// All that rank 0 would save after the training, of which step `fault.step` is left out (`skips`) or tried in vain.
std::vector<std::pair<std::string, torch::Tensor>> train(const StrategyOptions& options, int num_ranks, const Fault& fault, bool skips) {
  std::vector<std::pair<std::string, torch::Tensor>> saved;
  run_thread_ranks(num_ranks, [&](Group& group) {
    Net net(48);
    const auto strategy = make_strategy(*net, group, options);
    for (int64_t step = 0; step < kSteps; ++step) {
      if (skips && step == fault.step) continue;
      std::string problem;
      strategy->zero_grad();
      try {
        const int num_pieces = 2;
        for (int piece = 0; piece < num_pieces; ++piece) {
          strategy->set_sync(piece + 1 == num_pieces);
          // An exception of the first piece would end the step before anything is exchanged.
          const Place* const fails = piece == 1 && !skips ? fault.at(step, group.rank()) : nullptr;
          net->forward(rows(2 * step + piece, group.rank()), fails).pow(2).sum().backward();
        }
        strategy->finish_backward();
      } catch (const std::exception& error) {
        problem = error.what();
        if (fault.says_so) strategy->abandon_step();
      }
      const bool failed = !skips && fault.at(step, group.rank());
      if (!skips && step == fault.step) {
        const std::string expected = failed ? "the test's own" : fault.ranks.size() == 1 ? "rank 1 left this step" : "ranks left this step";
        if (problem.find(expected) == std::string::npos) FAIL(concat("rank ", group.rank(), ": '", problem, "', expected ", expected));
        continue;
      }
      if (!problem.empty()) FAIL(concat("rank ", group.rank(), ", step ", step, ": ", problem));
      strategy->step({.learning_rate = 0.01, .clip_norm = 5});
    }
    strategy->gather_weights();
    if (group.rank() == 0) {
      for (const FlatPiece& piece : strategy->saved_pieces()) saved.emplace_back(piece.name, piece.values.clone());
      for (const auto& item : net->named_parameters()) saved.emplace_back(item.key(), item.value().detach().clone());
    }
    group.barrier();
    strategy->release_weights();
  });
  return saved;
}

std::vector<StrategyOptions> all_strategies() {
  const UpdateRule rule{.kind = UpdateRule::Kind::kMomentum};
  std::vector<StrategyOptions> all;
  for (const int zero : {1, 2, 3}) all.push_back({.zero = zero, .rule = rule, .bucket_bytes = 4096});
  all.push_back({.rule = rule});  // Shared weights.
  for (const char* compress : {"none", "bf16", "int8", "topk:0.1", "powersgd:2"})
    all.push_back({.rule = rule, .compress = compress, .share_weights = false, .bucket_bytes = 4096});
  return all;
}

void check_as_if_left_out(const Fault& fault, int num_ranks) {
  for (const StrategyOptions& options : all_strategies()) {
    CAPTURE(options.zero);
    CAPTURE(options.compress);
    CAPTURE(options.share_weights);
    const auto expected = train(options, num_ranks, fault, /*skips=*/true), found = train(options, num_ranks, fault, /*skips=*/false);
    REQUIRE(found.size() == expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      CAPTURE(found[i].first);
      CAPTURE((found[i].second - expected[i].second).abs().max().item<double>());
      CHECK(torch::equal(found[i].second, expected[i].second));
    }
  }
}

TEST_CASE("a backward() that fails on one rank: the next steps train as if that one had not been, in every strategy") {
  for (const bool says_so : {true, false})
    for (const int64_t step : {0, 2}) {
      CAPTURE(says_so);
      CAPTURE(step);
      check_as_if_left_out({step, {Place::kLate, Place::kLate, Place::kLate}, {1}, says_so}, 3);
    }
}

TEST_CASE("an exception from forward, or before the first gradient: abandon_step() says it for the rank") {
  for (const Place place : {Place::kForward, Place::kEarly}) check_as_if_left_out({2, {place, place}, {1}, true}, 2);
}

TEST_CASE("exceptions on several ranks, in different places") {
  check_as_if_left_out({2, {Place::kLate, Place::kEarly, Place::kLate}, {0, 1}, true}, 3);
  check_as_if_left_out({2, {Place::kEarly, Place::kLate}, {0, 1}, true}, 2);
  check_as_if_left_out({2, {Place::kLate, Place::kLate}, {0, 1}, false}, 2);
}

TEST_CASE("a loop of one's own goes on too, also where zero_grad() leaves gradients in their buckets") {
  for (const bool set_to_none : {true, false})
    for (const bool says_so : {true, false}) {
      CAPTURE(set_to_none);
      CAPTURE(says_so);
      std::vector<torch::Tensor> weights;
      for (const bool skips : {true, false})
        run_thread_ranks(2, [&](Group& group) {
          Net net(24);
          DataParallel parallel(*net, group, {.bucket_bytes = 1024, .first_bucket_bytes = 512});
          torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.02).momentum(0.9));
          const Place late = Place::kLate;
          for (int64_t step = 0; step < 5; ++step) {
            const bool is_bad = step == 2;
            if (skips && is_bad) continue;
            optimizer.zero_grad(set_to_none);
            bool failed = false;
            try {
              net->forward(rows(step, group.rank()), is_bad && group.rank() == 1 ? &late : nullptr).pow(2).sum().backward();
            } catch (const std::exception&) {
              failed = true;
              if (says_so) parallel.abandon_step();
            }
            if (failed != is_bad) FAIL(concat("rank ", group.rank(), ", step ", step, " failed: ", failed));
            if (!failed) optimizer.step();
          }
          if (group.rank() == 0)
            weights.push_back(torch::cat({net->first->weight.view({-1}), net->third->weight.view({-1})}).detach().clone());
        });
      CHECK(torch::equal(weights[0], weights[1]));
    }
}

TEST_CASE("no samples after a failed backward() is refused: it could be the failed step's or the next one's") {
  run_thread_ranks(2, [](Group& group) {
    Net net(24);
    DataParallel parallel(*net, group);
    const Place late = Place::kLate;
    try {
      net->forward(rows(0, group.rank()), &late).sum().backward();
    } catch (const std::exception&) {
    }
    std::string text;
    try {
      parallel.exchange_without_backward();
    } catch (const Error& error) {
      text = error.what();
    }
    if (text.find("call abandon_step()") == std::string::npos) FAIL(text);
    parallel.abandon_step();
    if (parallel.backward_failed()) FAIL("still failed");
    parallel.exchange_without_backward();
  });
}

}  // namespace
}  // namespace cohort
