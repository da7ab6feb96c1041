#pragma once
// A small model and its training alone and together, for tests of programs that lay hands on it meanwhile.

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "cohort/base/fail.h"
#include "cohort/parallel/make_strategy.h"
#include "cohort/parallel/strategy/replicated.h"
#include "cohort/parallel/zero/zero_data_parallel.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/threads.h"

namespace cohort::own_code_test {

namespace nn = torch::nn;

struct NetImpl : nn::Module {
  nn::Linear first{nullptr}, second{nullptr};
  torch::Tensor frozen;
  explicit NetImpl(uint64_t seed = 3) {
    const SeededDraws draws(seed);
    first = register_module("first", nn::Linear(7, 40));
    second = register_module("second", nn::Linear(40, 3));
    frozen = register_parameter("frozen", torch::randn({3}), /*requires_grad=*/false);
    register_buffer("counts", torch::full({2}, static_cast<double>(seed)));
  }
  torch::Tensor forward(const torch::Tensor& x) { return second(torch::tanh(first(x))) * frozen; }
};
TORCH_MODULE(Net);

inline constexpr int kSteps = 5;
inline constexpr int kEditedAfter = 2;  ///< Steps.

inline torch::Tensor rows(int step, int rank) {
  const SeededDraws draws(static_cast<uint64_t>(10 * step + rank));
  return torch::randn({4, 7});
}

inline torch::Tensor loss_of(Net& net, int step, int rank) { return net->forward(rows(step, rank)).pow(2).sum() / 12; }

using Edit = std::function<void(Net&)>;

using Weights = std::map<std::string, torch::Tensor>;

inline Weights weights_of(Net& net) {
  Weights all;
  for (const auto& item : net->named_parameters()) all[item.key()] = item.value().detach().clone();
  return all;
}

inline Weights gathered_weights(Strategy& strategy, Net& net, Group& group) {
  strategy.gather_weights();
  Weights all = weights_of(net);
  group.barrier();
  strategy.release_weights();
  return all;
}

inline UpdateRule momentum() { return {.kind = UpdateRule::Kind::kMomentum, .momentum = 0.5}; }

/// One process that takes the rows of all ranks in turn, with LibTorch's optimizer.
inline Weights with_libtorch(int num_ranks, const Edit& edit) {
  Net net;
  std::vector<torch::Tensor> trained;
  for (const torch::Tensor& parameter : net->parameters())
    if (parameter.requires_grad()) trained.push_back(parameter);
  torch::optim::SGD optimizer(trained, torch::optim::SGDOptions(0.1).momentum(0.5));
  for (int step = 0; step < kSteps; ++step) {
    if (step == kEditedAfter && edit) edit(net);
    optimizer.zero_grad();
    for (int rank = 0; rank < num_ranks; ++rank) loss_of(net, step, rank).backward();
    optimizer.step();
  }
  return weights_of(net);
}

/// The same with our update, bit for bit.
inline Weights alone(int num_ranks, const Edit& edit) {
  Net net;
  Replicated strategy(*net, Group(), momentum());
  for (int step = 0; step < kSteps; ++step) {
    if (step == kEditedAfter && edit) edit(net);
    strategy.zero_grad();
    for (int rank = 0; rank < num_ranks; ++rank) loss_of(net, step, rank).backward();
    strategy.step({.learning_rate = 0.1});
  }
  return weights_of(net);
}

inline constexpr int kShared = 0, kTight = 4;  ///< Beside ZeRO's stages; kTight: stage 3 with one unit at a time.

inline std::unique_ptr<Strategy> make(int stage, Net& net, Group& group) {
  if (stage == kTight) {
    const ZeroOptions options{.stage = 3, .rule = momentum(), .bucket_bytes = 1, .live_bytes = 1};
    return std::make_unique<ZeroDataParallel>(*net, group, options);
  }
  return make_strategy(*net, group, {.zero = stage, .rule = momentum(), .bucket_bytes = stage == kShared ? 0 : 600});
}

using RankEdit = std::function<void(Net&, Strategy&, Group&)>;

/// Of the last rank.
inline Weights together(int stage, int num_ranks, const RankEdit& edit) {
  Weights found;
  run_thread_ranks(num_ranks, [&](Group& group) {
    Net net;
    const auto strategy = make(stage, net, group);
    for (int step = 0; step < kSteps; ++step) {
      if (step == kEditedAfter && edit) edit(net, *strategy, group);
      strategy->zero_grad();
      loss_of(net, step, group.rank()).backward();
      strategy->finish_backward();
      strategy->step({.learning_rate = 0.1});
    }
    Weights mine = gathered_weights(*strategy, net, group);
    if (group.rank() + 1 == num_ranks) found = std::move(mine);
    group.barrier();
  });
  return found;
}

inline void check_equal(const Weights& found, const Weights& expected, const std::string& where) {
  REQUIRE(found.size() == expected.size());
  for (const auto& [name, value] : expected) CHECK_MESSAGE(torch::equal(found.at(name), value), concat(where, ": ", name));
}

inline void check_as_alone(int stage, int num_ranks, const std::string& name, const Edit& edit, const RankEdit& rank_edit) {
  const std::string where = concat("stage ", stage, ", ", num_ranks, " ranks, ", name);
  const Weights expected = alone(num_ranks, edit), libtorch = with_libtorch(num_ranks, edit);
  for (const auto& [parameter, value] : libtorch)
    CHECK_MESSAGE(torch::allclose(expected.at(parameter), value, 1e-4, 1e-5),
                  concat(where, ", one process: ", parameter, " differs by ", (expected.at(parameter) - value).abs().max().item<double>()));
  check_equal(together(stage, num_ranks, rank_edit), expected, where);
}

inline std::string refusal(const std::function<void(Group&)>& body, int num_ranks = 2) {
  try {
    run_thread_ranks(num_ranks, body);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline void check_says(const std::string& text, const std::string& expected) {
  CHECK_MESSAGE(text.find(expected) != std::string::npos, text);
}

inline std::string refused_edit(int stage, const RankEdit& edit) {
  std::string text;
  try {
    together(stage, 2, edit);
  } catch (const Error& error) {
    text = error.what();
  }
  return text;
}

}  // namespace cohort::own_code_test
