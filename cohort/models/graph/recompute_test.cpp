#include "cohort/models/graph/recompute.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <doctest/doctest.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <string>

#include "cohort/base/fail.h"
#include "cohort/models/graph/step_context.h"
#include "cohort/models/layers/dropout.h"
#include "cohort/models/layers/ghost_batch_norm.h"
#include "cohort/models/layers/transformer_block.h"
#include "cohort/models/registry.h"

namespace cohort {
namespace {

namespace nn = torch::nn;
using Tensors = std::vector<at::Tensor>;
using Step = std::function<at::Tensor(const at::Tensor&)>;

bool same(const at::Tensor& a, const at::Tensor& b) { return a.defined() == b.defined() && (!a.defined() || at::equal(a, b)); }

/// Output, gradient of the input and of every parameter of one forward and backward.
Tensors trained_once(nn::Module& module, const Step& forward, const at::Tensor& data) {
  module.zero_grad();
  torch::manual_seed(11);
  at::Tensor input = data.detach().clone();
  if (input.is_floating_point()) input.requires_grad_();
  const at::Tensor output = forward(input);
  (output.to(at::kFloat) * 3).square().sum().backward();
  Tensors found{output.detach().clone(), input.grad()};
  for (const at::Tensor& parameter : module.parameters())
    found.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
  for (const at::Tensor& buffer : module.buffers()) found.push_back(buffer.clone());
  found.push_back(torch::rand({3}));  // The generator is in the same state.
  return found;
}

void check_same(const Tensors& found, const Tensors& expected, const std::string& what) {
  REQUIRE_MESSAGE(found.size() == expected.size(), what);
  for (size_t i = 0; i < found.size(); ++i) CHECK_MESSAGE(same(found[i], expected[i]), concat(what, ", tensor ", i));
}

/// Compares runs with and without recompute, each with a new module of `make`.
template <typename Make, typename Forward>
void check_module(const std::string& what, const at::Tensor& data, const Make& make, const Forward& forward) {
  torch::manual_seed(2);
  auto plain_module = make();
  torch::manual_seed(2);
  auto module = make();
  for (int repeat = 0; repeat < 2; ++repeat) {  // Buffers change from the first to the second.
    const Tensors plain = trained_once(*plain_module, [&](const at::Tensor& x) { return forward(*plain_module, x); }, data);
    const Tensors again = trained_once(
        *module, [&](const at::Tensor& x) { return recompute([&](const at::Tensor& t) { return forward(*module, t); }, x, &*module); },
        data);
    check_same(again, plain, what + ", repeat " + std::to_string(repeat));
  }
}

const auto kForward = [](auto& module, const at::Tensor& x) { return module.forward(x); };

TEST_CASE("gradients, buffers and random numbers are those of a run without recompute, bit for bit") {
  torch::manual_seed(1);
  const at::Tensor image = torch::randn({6, 3, 8, 8}), row = torch::randn({5, 6, 16});
  check_module(
      "linear, dropout", row, [] { return nn::Sequential(nn::Linear(16, 8), nn::GELU(), nn::Dropout(0.5), nn::Linear(8, 3)); }, kForward);
  check_module(
      "convolution, batch norm", image,
      [] { return nn::Sequential(nn::Conv2d(3, 4, 3), nn::BatchNorm2d(4), nn::ReLU(), nn::Dropout2d(0.3)); }, kForward);
  check_module("ghost batch norm", image, [] { return GhostBatchNorm2d(3, 2); }, kForward);
  check_module("block", row, [] { return TransformerBlock(BlockOptions{.width = 16, .heads = 2, .ff = 24, .dropout = 0.2}); }, kForward);
  check_module(
      "lstm", row, [] { return nn::LSTM(nn::LSTMOptions(16, 7).batch_first(true)); },
      [](auto& m, const at::Tensor& x) { return std::get<0>(m.forward(x)); });
}

TEST_CASE("a first layer, whose input needs no gradient, and integers") {
  torch::manual_seed(1);
  const at::Tensor ids = torch::randint(0, 20, {4, 5});
  check_module("embedding", ids, [] { return ByteEmbedding(20, 8, 5); }, kForward);
  check_module("positions short of the context", ids, [] { return ByteEmbedding(20, 8, 9); }, kForward);
}

TEST_CASE("the step context of forward holds in backward") {
  Dropout dropout(0.5, 3);
  const at::Tensor data = torch::randn({4, 9});
  at::Tensor plain = data.clone().requires_grad_(), again = data.clone().requires_grad_();
  at::Tensor kept, output;
  {
    const StepContextScope scope({.seed = 5, .step = 2, .first_sample = 7});
    kept = dropout->forward(plain);
    output = recompute([&](const at::Tensor& t) { return dropout->forward(t); }, again);
  }
  {
    const StepContextScope other({.seed = 6, .step = 9, .first_sample = 0});
    kept.sum().backward();
    output.sum().backward();
    CHECK(current_step_context()->step == 9);
  }
  CHECK(same(output, kept));
  CHECK(same(again.grad(), plain.grad()));
  at::Tensor late = recompute([&](const at::Tensor& t) { return dropout->forward(t); }, again);
  const StepContextScope other({.seed = 6, .step = 9, .first_sample = 0});
  CHECK_THROWS_WITH_AS(late.sum().backward(), doctest::Contains("outside of a StepContextScope"), Error);
}

TEST_CASE("autocast: state and casts of forward hold in backward, wherever that is called") {
  torch::manual_seed(1);
  TransformerBlock block(BlockOptions{.width = 16, .heads = 2, .ff = 24});
  nn::Linear twice(16, 16);
  block->register_module("twice", twice);
  const at::Tensor data = torch::randn({3, 4, 16});
  const auto forward = [&](const at::Tensor& x) { return twice->forward(block->forward(twice->forward(x) + twice->forward(2 * x))); };
  const auto run = [&](bool recomputed, bool backward_inside) {
    block->zero_grad();
    at::Tensor input = data.clone().requires_grad_();
    at::Tensor inside = input * 1;
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::increment_nesting();
    inside = recomputed ? recompute(forward, inside) : forward(inside);
    const auto leave = [] {
      if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
      at::autocast::set_autocast_enabled(at::kCPU, false);
    };
    if (!backward_inside) leave();
    inside.to(at::kFloat).square().sum().backward();
    CHECK(at::autocast::is_autocast_enabled(at::kCPU) == backward_inside);
    if (backward_inside) leave();
    Tensors found{inside.detach(), input.grad().clone()};
    for (const at::Tensor& parameter : block->parameters()) found.push_back(parameter.grad().clone());
    return found;
  };
  const Tensors expected = run(false, false);
  CHECK((expected[0].scalar_type() == at::kBFloat16));
  check_same(run(true, false), expected, "backward outside");
  check_same(run(true, true), expected, "backward inside");
}

TEST_CASE("several inputs and outputs, some undefined, unused or without gradients; an input passed through") {
  torch::manual_seed(1);
  const at::Tensor weight = torch::randn({4}).requires_grad_(), outside = torch::randn({4}).requires_grad_();
  const auto run = [&](bool recomputed) {
    weight.mutable_grad() = outside.mutable_grad() = at::Tensor();
    at::Tensor a = torch::ones({4}).requires_grad_(), b = torch::full({4}, 2.0).requires_grad_(),
               unused = torch::ones({2}).requires_grad_();
    const at::Tensor made = outside * 2;  // Read by the function though no input of it: its gradient arrives all the same.
    const auto function = [&](const Tensors& in) {
      CHECK_FALSE(in[3].defined());
      return Tensors{in[0] * in[1] * weight, in[1], (in[0] * 2).detach(), in[4] + 1, made * in[0], weight, in[0].sin()};
    };
    const Tensors inputs{a, b, unused, at::Tensor(), torch::arange(3)};
    const Tensors out = recomputed ? recompute(function, inputs) : function(inputs);
    CHECK(out[1].requires_grad());
    CHECK_FALSE(out[2].requires_grad());
    CHECK((out[3].scalar_type() == at::kLong));
    torch::autograd::backward({(out[0] * out[1]).sum() + (out[4] * made * out[5]).sum()}, {});  // out[6] gets no gradient.
    CHECK_FALSE(unused.grad().defined());
    Tensors found{a.grad(), b.grad(), weight.grad(), outside.grad()};
    for (const at::Tensor& one : out) found.push_back(one.detach());
    return found;
  };
  check_same(run(true), run(false), "gradients and outputs");
}

TEST_CASE("nested, and one weight in several calls and outside of them: hooks see one gradient") {
  torch::manual_seed(1);
  nn::Linear linear(6, 6);
  int num_hooks = 0;
  linear->weight.register_hook([&](const at::Tensor& gradient) {
    ++num_hooks;
    return gradient * 0.5;
  });
  const at::Tensor data = torch::randn({4, 6});
  const Step inner = [&](const at::Tensor& x) { return at::dropout(linear->forward(x).tanh(), 0.5, true); };
  const Step plain = [&](const at::Tensor& x) { return inner(inner(inner(x))) * linear->weight.sum(); };
  const Tensors expected = trained_once(*linear, plain, data);
  CHECK(num_hooks == 1);
  const Step again = [&](const at::Tensor& x) { return recompute(inner, x); };
  const Tensors found = trained_once(
      *linear,
      [&](const at::Tensor& x) { return recompute([&](const at::Tensor& t) { return again(inner(again(t))); }, x) * linear->weight.sum(); },
      data);
  CHECK(num_hooks == 2);
  CHECK(same(found[0], expected[0]));
  for (size_t i = 1; i < found.size(); ++i) CHECK(at::allclose(found[i], expected[i], 1e-5, 1e-6));  // Sums in another order.
}

TEST_CASE("is_recomputing() tells second runs; statistics move once, without a module too, in a step and outside") {
  torch::manual_seed(1);
  GhostBatchNorm2d plain(3, 2), again(3, 2);
  const at::Tensor data = torch::randn({4, 3, 2, 2});
  std::vector<bool> seen;
  const auto train = [&](const StepContext* context) {
    std::optional<StepContextScope> scope;
    if (context) scope.emplace(*context);
    for (int micro = 0; micro < 2; ++micro) {
      plain->forward(data + micro).square().sum().backward();
      recompute([&](const at::Tensor& t) { return (seen.push_back(is_recomputing()), again->forward(t)); }, data + micro)
          .square()
          .sum()
          .backward();
    }
    CHECK(same(again->running_mean, plain->running_mean));
    CHECK(same(again->running_var, plain->running_var));
    CHECK(again->running_mean._version() == plain->running_mean._version());
  };
  const StepContext context{.seed = 1, .step = 4};
  train(&context);
  train(nullptr);
  CHECK(seen == std::vector<bool>{false, true, false, true, false, true, false, true});
  CHECK_FALSE(is_recomputing());
}

TEST_CASE("with gradients off it is a plain call, and without anything to train nothing is kept") {
  int num_calls = 0;
  const Step function = [&](const at::Tensor& x) { return (++num_calls, x * 2); };
  {
    const at::NoGradGuard no_grad;
    CHECK_FALSE(recompute(function, torch::ones({2}).requires_grad_()).requires_grad());
  }
  CHECK_FALSE(recompute(function, torch::ones({2})).requires_grad());
  CHECK(num_calls == 2);
}

TEST_CASE("a graph that is kept may be gone through again") {
  const at::Tensor x = torch::randn({3}).requires_grad_(), weight = torch::randn({3}).requires_grad_();
  const at::Tensor y = recompute([&](const at::Tensor& t) { return at::dropout((t * weight).exp(), 0.5, true); }, x);
  const Tensors first = torch::autograd::grad({y.sum()}, {x, weight}, {}, /*retain_graph=*/true);
  check_same(torch::autograd::grad({y.sum()}, {x, weight}), first, "second time");
}

TEST_CASE("functions that cannot be repeated are refused") {
  torch::manual_seed(1);
  const at::Tensor x = torch::ones({3}).requires_grad_();
  at::Tensor weight = torch::ones({3}).requires_grad_(), other = torch::ones({3}).requires_grad_();
  CHECK_THROWS_WITH_AS(recompute([](const at::Tensor&) { return at::Tensor(); }, x), doctest::Contains("output 0 of 1"), Error);
  const auto times_weight = [&](const at::Tensor& t) { return t * weight; };
  at::Tensor y = recompute(times_weight, x);
  CHECK_THROWS_WITH_AS(torch::autograd::grad({y.sum()}, {x}, {}, true, /*create_graph=*/true), doctest::Contains("second derivatives"),
                       Error);
  {
    const at::NoGradGuard no_grad;
    weight.add_(1);
  }
  CHECK_THROWS_WITH_AS(y.sum().backward(), doctest::Contains("was changed between forward and backward"), Error);
  int num_calls = 0;
  y = recompute([&](const at::Tensor& t) { return ++num_calls == 1 ? t * weight : t * other; }, x);
  CHECK_THROWS_WITH_AS(y.sum().backward(), doctest::Contains("that the first did not"), Error);
  y = recompute(times_weight, x);
  y.sum().backward();
  CHECK_THROWS_WITH_AS(y.sum().backward(), doctest::Contains("a second time"), Error);
  at::Tensor changed = x * 1;
  y = recompute(times_weight, changed);
  changed.add_(1);
  CHECK_THROWS_WITH(y.sum().backward(), doctest::Contains("inplace operation"));
}

TEST_CASE("an exception leaves generator, autocast, context and counters as they were") {
  const at::Tensor x = torch::ones({3}).requires_grad_();
  bool fails = false;
  at::Tensor y = recompute(
      [&](const at::Tensor& t) {
        const at::Tensor noise = torch::rand({3});
        if (fails) throw std::runtime_error("no more");
        return t * noise;
      },
      x);
  fails = true;
  torch::manual_seed(3);
  const at::Tensor expected = torch::rand({4});
  torch::manual_seed(3);
  CHECK_THROWS_WITH(y.sum().backward(), "no more");
  CHECK_FALSE(is_recomputing());
  CHECK(same(torch::rand({4}), expected));
  fails = false;
  y.sum().backward();  // The graph is still there.
  CHECK(x.grad().defined());
}

TEST_CASE("only inputs are kept between forward and backward, and nothing after it") {
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> saved;
  const auto num_alive = [&] { return std::count_if(saved.begin(), saved.end(), [](const auto& one) { return !one.expired(); }); };
  const Step deep = [&](const at::Tensor& x) {
    at::Tensor y = x;
    for (int i = 0; i < 5; ++i) {
      y = y.sin();  // Each keeps its input.
      saved.emplace_back(y.getIntrusivePtr());
    }
    return y * y;
  };
  at::Tensor x = torch::ones({8}).requires_grad_();
  at::Tensor y = deep(x);
  CHECK(num_alive() == 5);
  y = at::Tensor();
  saved.clear();
  y = recompute(deep, x);
  CHECK(num_alive() == 0);
  y.sum().backward();
  CHECK(saved.size() == 10);
  CHECK(num_alive() == 0);
  at::Tensor input = x * 1;
  const c10::weak_intrusive_ptr<c10::TensorImpl> watch(input.getIntrusivePtr());
  y = recompute(deep, input);
  input = at::Tensor();
  CHECK_FALSE(watch.expired());
  y.sum().backward();
  CHECK(watch.expired());  // Although y still exists.
}

}  // namespace
}  // namespace cohort
