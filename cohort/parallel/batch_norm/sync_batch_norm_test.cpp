#include "cohort/parallel/batch_norm/sync_batch_norm.h"

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <numeric>

#include "cohort/base/fail.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/threads.h"

namespace cohort {
namespace {

struct Case {
  const char* name;
  std::vector<int64_t> samples;  ///< Of each rank.
  std::vector<int64_t> rest;     ///< {channels, ...}
  at::ScalarType type = at::kFloat;
  bool affine = true, running = true;
  double momentum = 0.1, offset = 0, tolerance = 1e-5;
  at::MemoryFormat format = at::MemoryFormat::Contiguous;
};

/// Everything that a layer computes, in double.
struct Result {
  at::Tensor output, input_gradient, weight_gradient, bias_gradient, running_mean, running_var;
};

struct Problem {
  at::Tensor input, direction;  ///< The loss is (output * direction).sum().
  at::Tensor weight, bias, running_mean, running_var;
  explicit Problem(const Case& c) {
    torch::manual_seed(3);
    std::vector<int64_t> sizes{std::accumulate(c.samples.begin(), c.samples.end(), int64_t{0})};
    sizes.insert(sizes.end(), c.rest.begin(), c.rest.end());
    input = (torch::randn(sizes) * 2 + c.offset).to(c.type).contiguous(c.format);
    direction = torch::randn(sizes).to(c.type);
    if (c.affine) weight = torch::rand({c.rest[0]}) + 0.5, bias = torch::randn({c.rest[0]});
    if (c.running) running_mean = torch::randn({c.rest[0]}), running_var = torch::rand({c.rest[0]}) + 0.5;
    if (c.type == at::kDouble) {
      for (at::Tensor* t : {&weight, &bias, &running_mean, &running_var})
        if (t->defined()) *t = t->to(at::kDouble);
    }
  }
};

template <typename Norm>
Result run(const Problem& problem, int64_t begin, int64_t size, Norm norm) {
  const auto leaf = [](const at::Tensor& t) { return t.defined() ? t.detach().clone().requires_grad_() : t; };
  const auto copy = [](const at::Tensor& t) { return t.defined() ? t.clone() : t; };
  at::Tensor input = leaf(problem.input.narrow(0, begin, size)), weight = leaf(problem.weight), bias = leaf(problem.bias);
  Result out{.running_mean = copy(problem.running_mean), .running_var = copy(problem.running_var)};
  const at::Tensor y = norm(input, weight, bias, out.running_mean, out.running_var);
  (y.to(at::kDouble) * problem.direction.narrow(0, begin, size)).sum().backward();
  out.output = y.detach();
  out.input_gradient = input.grad();
  if (weight.defined()) out.weight_gradient = weight.grad(), out.bias_gradient = bias.grad();
  return out;
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0) return a.sizes() == b.sizes() ? 0 : 1;
  const double scale = b.to(at::kDouble).abs().max().item<double>();
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>() / std::max(scale, 1e-30);
}

void check_case(const Case& c, int64_t repeat = 1) {
  const Problem problem(c);
  const int64_t total = problem.input.size(0);
  // The reference: LibTorch's batch norm of all samples, in the same type.
  const Result whole = run(problem, 0, total, [&](auto& x, auto& w, auto& b, auto& m, auto& v) {
    return torch::batch_norm(x, w, b, m, v, true, c.momentum, 1e-5, false);
  });
  std::vector<Result> parts(c.samples.size());
  run_thread_ranks(static_cast<int>(c.samples.size()), [&](Group& group) {
    const auto rank = static_cast<size_t>(group.rank());
    const int64_t begin = std::accumulate(c.samples.begin(), c.samples.begin() + group.rank(), int64_t{0});
    for (int64_t i = 0; i < repeat; ++i) {
      const Result now = run(problem, begin, c.samples[rank], [&](auto& x, auto& w, auto& b, auto& m, auto& v) {
        return sync_batch_norm(x, {w, b, m, v, c.momentum, 1e-5}, {group, "bn", 0});
      });
      if (i > 0 && !(at::equal(now.output, parts[rank].output) && at::equal(now.input_gradient, parts[rank].input_gradient)))
        fail(ErrorCode::kFailed, c.name, ": not repeatable");
      parts[rank] = now;
    }
  });
  INFO(std::string(c.name));
  const auto joined = [&](at::Tensor Result::* member) {
    std::vector<at::Tensor> pieces;
    for (const Result& part : parts) pieces.push_back(part.*member);
    return at::cat(pieces);
  };
  CHECK((joined(&Result::output).scalar_type() == c.type));
  CHECK(difference(joined(&Result::output), whole.output) < c.tolerance);
  CHECK(difference(joined(&Result::input_gradient), whole.input_gradient) < c.tolerance);
  if (c.affine) {
    at::Tensor weight_gradient = at::zeros_like(whole.weight_gradient), bias_gradient = at::zeros_like(whole.bias_gradient);
    for (const Result& part : parts) weight_gradient += part.weight_gradient, bias_gradient += part.bias_gradient;
    CHECK(difference(weight_gradient, whole.weight_gradient) < c.tolerance);
    CHECK(difference(bias_gradient, whole.bias_gradient) < c.tolerance);
  }
  if (c.running) {
    CHECK(difference(parts[0].running_mean, whole.running_mean) < 1e-5);
    CHECK(difference(parts[0].running_var, whole.running_var) < 1e-5);
    for (const Result& part : parts) {
      CHECK(at::equal(part.running_mean, parts[0].running_mean));
      CHECK(at::equal(part.running_var, parts[0].running_var));
    }
  }
}

TEST_CASE("several ranks compute what one process does with all samples") {
  check_case({.name = "2d", .samples = {4, 4}, .rest = {5, 6, 7}}, 3);
  check_case({.name = "2d, uneven", .samples = {1, 5, 3}, .rest = {5, 6, 7}});
  check_case({.name = "2d, an empty rank in front", .samples = {0, 5, 3, 1}, .rest = {3, 2, 3}});
  check_case({.name = "2d, all but one empty", .samples = {0, 5, 0}, .rest = {3, 2, 3}});
  check_case({.name = "2d, channels last", .samples = {3, 2}, .rest = {8, 5, 4}, .format = at::MemoryFormat::ChannelsLast});
  check_case({.name = "3d", .samples = {2, 1, 1}, .rest = {3, 2, 3, 4}});
  check_case({.name = "3d, channels last", .samples = {2, 1}, .rest = {3, 2, 3, 4}, .format = at::MemoryFormat::ChannelsLast3d});
  check_case({.name = "1d", .samples = {7, 2, 1}, .rest = {9}});
  check_case({.name = "1d sequences", .samples = {2, 3}, .rest = {4, 11}});
  check_case({.name = "one channel", .samples = {2, 3}, .rest = {1, 3, 3}});
  check_case({.name = "not affine", .samples = {2, 3}, .rest = {4, 3, 3}, .affine = false});
  check_case({.name = "no running statistics", .samples = {2, 3}, .rest = {4, 3, 3}, .running = false});
  check_case({.name = "neither", .samples = {2, 3}, .rest = {4, 3, 3}, .affine = false, .running = false});
  check_case({.name = "cumulative", .samples = {2, 3}, .rest = {4, 3, 3}, .momentum = 1.0 / 3});
  check_case({.name = "double", .samples = {2, 3}, .rest = {4, 3, 3}, .type = at::kDouble, .tolerance = 1e-12});
}

TEST_CASE("half precision differs from one process by roundings of the type") {
  const double bf16 = 1.0 / 128, fp16 = 1.0 / 1024;  // one unit in the last place of a number between 1 and 2
  for (const bool affine : {true, false}) {
    check_case({.name = "bf16", .samples = {4, 3}, .rest = {5, 6, 7}, .type = at::kBFloat16, .affine = affine, .tolerance = 2 * bf16});
    check_case({.name = "fp16", .samples = {4, 3}, .rest = {5, 6, 7}, .type = at::kHalf, .affine = affine, .tolerance = 2 * fp16});
  }
  check_case({.name = "bf16, nothing but the input",
              .samples = {4, 0, 3},
              .rest = {5, 6, 7},
              .type = at::kBFloat16,
              .affine = false,
              .running = false,
              .tolerance = 2 * bf16,
              .format = at::MemoryFormat::ChannelsLast});
}

TEST_CASE("a mean that is large beside the deviation does not cancel") {
  // E[x^2] - E[x]^2 in float would be wrong in the first digit: 1e8 has steps of 8, the variance is 4.
  const Case c{.name = "offset", .samples = {16, 5}, .rest = {3, 8, 8}, .momentum = 1.0, .offset = 1e4};
  const Problem problem(c);
  const at::Tensor exact = problem.input.to(at::kDouble).var({0, 2, 3}, true);
  run_thread_ranks(2, [&](Group& group) {
    at::Tensor mean = at::zeros({3}), variance = at::ones({3});
    sync_batch_norm(problem.input.narrow(0, group.rank() * 16, c.samples[static_cast<size_t>(group.rank())]),
                    {problem.weight, problem.bias, mean, variance, 1.0, 1e-5}, {group, "bn", 0});
    if (difference(variance, exact) > 1e-5) fail(ErrorCode::kFailed, "variance off by ", difference(variance, exact));
  });
}

TEST_CASE("parameters in half precision get gradients in it") {
  run_thread_ranks(2, [](Group& group) {
    const at::Tensor weight = at::ones({3}, at::kBFloat16).requires_grad_(), bias = at::zeros({3}, at::kBFloat16).requires_grad_();
    at::Tensor mean = at::zeros({3}, at::kBFloat16), variance = at::ones({3}, at::kBFloat16);
    const at::Tensor input = at::arange(24, at::kFloat).view({2, 3, 4}).to(at::kBFloat16).requires_grad_();
    sync_batch_norm(input, {weight, bias, mean, variance, 1.0, 1e-5}, {group, "bn", 0}).sum().backward();
    // Both ranks have the values 4c + {0..3, 12..15}: mean 4c + 7.5, variance 37.25 * 16 / 15.
    if (!at::allclose(mean.to(at::kFloat), at::tensor({7.5f, 11.5f, 15.5f}))) fail(ErrorCode::kFailed, mean);
    if (std::abs(variance[0].item<double>() - 37.25 * 16 / 15) > 0.2) fail(ErrorCode::kFailed, variance);
    if (weight.grad().scalar_type() != at::kBFloat16 || bias.grad()[0].item<double>() != 8) fail(ErrorCode::kFailed, bias.grad());
  });
}

TEST_CASE("a bias without a weight, and an input that needs no gradient") {
  run_thread_ranks(2, [](Group& group) {
    const at::Tensor bias = at::zeros({3}).requires_grad_();
    const at::Tensor output = sync_batch_norm(at::arange(12, at::kFloat).view({4, 3}), {.bias = bias}, {group, "bn", 0});
    output.sum().backward();  // no exchange: nobody needs the gradient of the input
    if (!at::equal(bias.grad(), at::full({3}, 4.0f))) fail(ErrorCode::kFailed, bias.grad());
  });
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST_CASE("what cannot be right is refused on every rank") {
  run_thread_ranks(3, [](Group& group) {
    const auto expect = [&](const std::string& text, const std::string& part) {
      if (text.find(part) == std::string::npos) fail(ErrorCode::kFailed, "rank ", group.rank(), " expected '", part, "', got: ", text);
    };
    const at::Tensor input = at::ones({2, 3}).requires_grad_();
    expect(error_of([&] { sync_batch_norm(input, {}, {group, "bn", group.rank() == 2 ? 5 : 4}); }),
           "rank 0 is in batch norm layer 4 (forward) and rank 2 in batch norm layer 5 (forward)");
    expect(error_of([&] { sync_batch_norm(at::ones({group.rank() == 1 ? 1 : 0, 3}), {}, {group, "bn7", 0}); }),
           "bn7 has one value a channel");
    expect(error_of([&] { sync_batch_norm(at::ones({3}), {}, {group, "bn", 0}); }), "needs floating-point input");
    const at::Tensor loss = sync_batch_norm(input, {}, {group, "bn", 0}).pow(2).sum();
    expect(error_of([&] { torch::autograd::grad({loss}, {input}, {}, true, /*create_graph=*/true); }), "cannot be differentiated twice");
  });
}

TEST_CASE("no samples anywhere: nothing changes") {
  run_thread_ranks(2, [](Group& group) {
    at::Tensor mean = at::zeros({3}), variance = at::ones({3});
    const at::Tensor weight = at::ones({3}).requires_grad_(), input = at::empty({0, 3, 2, 2}).requires_grad_();
    const at::Tensor output = sync_batch_norm(input, {weight, at::zeros({3}), mean, variance, 0.1, 1e-5}, {group, "bn", 0});
    output.sum().backward();
    if (!at::equal(variance, at::ones({3})) || weight.grad().count_nonzero().item<int64_t>() != 0) fail(ErrorCode::kFailed, "moved");
  });
}

}  // namespace
}  // namespace cohort
