#pragma once
// An awkward model and its training in one process, for the tests of ZeRO.

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <tuple>

#include "cohort/base/fail.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/parallel/zero/zero_data_parallel.h"
#include "tests/support/thread_ranks.h"

namespace cohort::zero_test {

namespace nn = torch::nn;

using Weights = std::map<std::string, torch::Tensor>;

inline std::mutex& generator_mutex() {
  static std::mutex mutex;  // Ranks as threads share LibTorch's generator: whoever seeds and draws holds this.
  return mutex;
}

/// nn::Linear on any device: Module::to() knows those of LibTorch alone.
struct DenseImpl : nn::Module {
  torch::Tensor weight, bias;
  DenseImpl(int64_t in, int64_t out, c10::Device device) {
    const double bound = 1 / std::sqrt(static_cast<double>(in));
    weight = register_parameter("weight", torch::empty({out, in}, torch::kDouble).uniform_(-bound, bound).to(device));
    bias = register_parameter("bias", torch::empty({out}, torch::kDouble).uniform_(-bound, bound).to(device));
  }
  torch::Tensor forward(const torch::Tensor& x) { return torch::linear(x, weight, bias); }
};
TORCH_MODULE(Dense);

/// Everything awkward in one model: a tied weight, a parameter used twice, frozen ones (one of them half), an empty one, two trained types,
/// a module nobody uses and a branch that only some ranks use. Mostly double, for sums of divided rows differ by rounding.
struct AwkwardImpl : nn::Module {
  Dense first{nullptr}, second{nullptr}, branch{nullptr}, never{nullptr};
  torch::Tensor empty, frozen, twice, coarse, frozen_half;

  explicit AwkwardImpl(uint64_t seed, c10::Device device = c10::Device(at::kCPU)) {
    const std::lock_guard<std::mutex> lock(generator_mutex());
    torch::manual_seed(seed);
    const auto random = [device](int64_t count, at::ScalarType type) { return torch::randn({count}).to(type).to(device); };
    first = register_module("first", Dense(6, 5, device));
    second = register_module("second", Dense(5, 6, device));
    branch = register_module("branch", Dense(5, 5, device));
    never = register_module("never", Dense(3, 3, device));
    empty = register_parameter("empty", torch::empty({0, 4}, torch::kDouble).to(device));
    frozen = register_parameter("frozen", random(5, torch::kDouble), /*requires_grad=*/false);
    twice = register_parameter("twice", random(5, torch::kDouble));
    register_parameter("alias_of_twice", twice);
    coarse = register_parameter("coarse", random(6, torch::kFloat));
    frozen_half = register_parameter("frozen_half", random(6, torch::kHalf), /*requires_grad=*/false);
  }
  torch::Tensor forward(const torch::Tensor& x, bool with_branch) {
    torch::Tensor h = torch::tanh(first(x) * twice + frozen);
    if (with_branch) h = h + branch(h);
    h = second(h * twice) + x.matmul(first->weight.t()).matmul(first->weight) + empty.sum();
    return h * coarse.to(torch::kDouble) + frozen_half.to(torch::kDouble);
  }
};
TORCH_MODULE(Awkward);

constexpr int64_t kRows = 12;
constexpr int kSteps = 4;

inline torch::Tensor samples(uint64_t seed) {
  const std::lock_guard<std::mutex> lock(generator_mutex());
  torch::manual_seed(seed);
  return torch::randn({kRows, 6}, torch::kDouble);
}

struct Scenario {
  int stage = 1, num_ranks = 2;
  UpdateRule::Kind kind = UpdateRule::Kind::kMomentum;
  int num_micro_steps = 1;
  double clip_norm = 0;
  bool uneven = false;
  int64_t bucket_bytes = 200;

  UpdateRule rule() const { return {.kind = kind, .momentum = 0.9, .weight_decay = 0.05}; }
};

inline std::string text_of(const Scenario& s) {
  return concat("stage ", s.stage, ", ", s.num_ranks, " ranks, rule ", static_cast<int>(s.kind), ", ", s.num_micro_steps,
                " micro-steps, clip ", s.clip_norm, s.uneven ? ", uneven" : "", ", units of ", s.bucket_bytes);
}

/// Rows of a rank: equal parts, or 7, 4, 1, 0.
inline std::pair<int64_t, int64_t> rows_of(int rank, const Scenario& s) {
  if (!s.uneven) return {kRows / s.num_ranks * rank, kRows / s.num_ranks};
  const int64_t counts[] = {7, 4, 1, 0};
  int64_t begin = 0;
  for (int r = 0; r < rank; ++r) begin += counts[r];
  return {begin, rank + 1 == s.num_ranks && s.num_ranks < 4 ? kRows - begin : counts[rank]};
}

/// Nobody uses the branch in steps 1 and 4, all in step 2, rank 0 alone in step 3.
inline bool with_branch(int step, int rank) { return step == 2 || (step == 3 && rank == 0); }

inline torch::Tensor loss_of(Awkward& model, const torch::Tensor& rows, bool branch) {
  return model->forward(rows, branch).pow(2).mean(1).sum() / kRows;
}

/// Copies in host memory.
inline Weights weights_of(const nn::Module& module) {
  Weights out;
  for (const NamedTensor& parameter : distinct_parameters(module)) out[parameter.name] = parameter.tensor.detach().cpu().clone();
  return out;
}

/// What one process makes of it, with LibTorch's optimizers.
inline Weights reference(const Scenario& s) {
  Awkward model(5);
  std::vector<torch::Tensor> trained;
  for (const NamedTensor& parameter : distinct_parameters(*model))
    if (parameter.tensor.requires_grad()) trained.push_back(parameter.tensor);
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (s.kind == UpdateRule::Kind::kAdamW)
    optimizer = std::make_unique<torch::optim::AdamW>(trained, torch::optim::AdamWOptions(0.05).weight_decay(0.05));
  else optimizer = std::make_unique<torch::optim::SGD>(trained, torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.05));
  for (int step = 1; step <= kSteps; ++step) {
    optimizer->zero_grad();
    const torch::Tensor all = samples(static_cast<uint64_t>(step));
    for (int rank = 0; rank < s.num_ranks; ++rank) {
      const auto [begin, count] = rows_of(rank, s);
      if (count > 0) loss_of(model, all.narrow(0, begin, count), with_branch(step, rank)).backward();
    }
    double norm_squared = 0;
    for (const torch::Tensor& parameter : trained)
      if (parameter.grad().defined()) norm_squared += parameter.grad().to(torch::kDouble).pow(2).sum().item<double>();
    if (const double norm = std::sqrt(norm_squared); s.clip_norm > 0 && norm > s.clip_norm)
      for (const torch::Tensor& parameter : trained)
        if (parameter.grad().defined()) parameter.mutable_grad().mul_(s.clip_norm / (norm + 1e-6));
    optimizer->step();
  }
  return weights_of(*model);
}

/// Steps [from, to] of a rank.
inline void train(ZeroDataParallel& zero, Awkward& model, Group& group, const Scenario& s, int from, int to) {
  for (int step = from; step <= to; ++step) {
    zero.zero_grad();
    const torch::Tensor all = samples(static_cast<uint64_t>(step)).to(model->twice.device());
    const auto [begin, count] = rows_of(group.rank(), s);
    zero.set_control(1, static_cast<float>(group.rank() + step));
    const int64_t piece = (count + s.num_micro_steps - 1) / s.num_micro_steps;
    if (count == 0) zero.exchange_without_backward();
    for (int64_t done = 0; done < count; done += piece) {
      zero.set_sync(done + piece >= count);
      const int64_t rows = std::min(piece, count - done);
      loss_of(model, all.narrow(0, begin + done, rows), with_branch(step, group.rank())).backward();
    }
    zero.set_sync(true);
    zero.finish_backward();
    if (zero.control_sum(1) != s.num_ranks * (s.num_ranks - 1) / 2 + s.num_ranks * step) FAIL("control_sum");
    const StepOutcome outcome = zero.step({.learning_rate = 0.05, .clip_norm = s.clip_norm});
    if ((outcome.gradient_norm > 0) != (s.clip_norm > 0)) FAIL("gradient_norm");
  }
}

inline ZeroOptions options_of(const Scenario& s) { return {.stage = s.stage, .rule = s.rule(), .bucket_bytes = s.bucket_bytes}; }

inline void check_close(const Weights& found, const Weights& expected, const std::string& where) {
  for (const auto& [name, value] : expected)
    if (!torch::allclose(found.at(name), value, 1e-6, value.scalar_type() == torch::kFloat ? 5e-6 : 1e-6))
      FAIL(concat(where, ": ", name, " differs by ", (found.at(name) - value).abs().max().item<double>()));
}

/// Eight equal layers of 64 KiB and a little more.
struct DeepImpl : nn::Module {
  std::vector<nn::Linear> layers;
  DeepImpl() {
    const std::lock_guard<std::mutex> lock(generator_mutex());
    torch::manual_seed(3);
    for (int i = 0; i < 8; ++i) layers.push_back(register_module(concat("layer", i), nn::Linear(128, 128)));
  }
  torch::Tensor layer(size_t index, const torch::Tensor& x) { return torch::tanh(layers[index](x)); }
  torch::Tensor forward(torch::Tensor x) {
    for (size_t i = 0; i < layers.size(); ++i) x = layer(i, x);
    return x;
  }
};
TORCH_MODULE(Deep);

}  // namespace cohort::zero_test
