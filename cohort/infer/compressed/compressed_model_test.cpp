// Each kernel beside a plain reference: sums of products of codes in double, rounded to codes by the definition. Kernels round once, so an
// output code may differ by one where the exact value lies between two.
#include "cohort/infer/compressed/compressed_model.h"

#include <ATen/ops/conv2d.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <doctest/doctest.h>
#include <torch/utils.h>

#include <algorithm>

namespace cohort {
namespace {

struct Exact {
  at::Tensor weight, bias;
  Codes codes;
  explicit Exact(const std::vector<int64_t>& shape) : codes(encode_rows(at::randn(shape), 8, 0)) {
    weight = decode_rows(codes, {.shape = shape}).to(at::kDouble);
    bias = at::randn({shape[0]});
  }
};

/// The numbers that the codes of the input stand for.
at::Tensor coded(const at::Tensor& input, const CodeScale& scale) {
  return (((input.to(at::kDouble) / scale.scale).round() + static_cast<double>(scale.zero_point)).clamp(0, 255) -
          static_cast<double>(scale.zero_point)) *
         scale.scale;
}

void check_codes(const at::Tensor& found, at::Tensor exact, const CompressedLayer& how) {
  REQUIRE(found.is_quantized());
  CHECK(found.q_scale() == doctest::Approx(how.output.scale));
  CHECK(found.q_zero_point() == how.output.zero_point);
  if (how.relu) exact = exact.clamp_min(0);
  const at::Tensor wanted = coded(exact, how.output);
  CHECK((found.dequantize().to(at::kDouble) - wanted).abs().max().item<double>() <= 1.001 * how.output.scale);
  // Nearly all codes are exact.
  const double same = ((found.dequantize().to(at::kDouble) - wanted).abs() < 0.5 * how.output.scale).to(at::kDouble).mean().item<double>();
  CHECK(same > 0.98);
}

TEST_CASE("a product of codes is the product of what they stand for") {
  torch::manual_seed(5);
  const Exact layer({6, 40});
  const Int8Linear kernel(layer.codes, layer.bias);
  CompressedLayer how{.name = "l", .form = CompressedLayer::Form::kStatic, .input = {0.05, 60}, .output = {0.4, 64}};
  for (const int64_t samples : {1, 3, 64})
    for (const bool relu : {false, true}) {
      how.relu = relu;
      const at::Tensor input = at::randn({samples, 40});
      const at::Tensor exact = at::linear(coded(input, how.input), layer.weight, layer.bias.to(at::kDouble));
      how.floats = false;
      check_codes(kernel.forward_static(input, how), exact, how);
      check_codes(kernel.forward_static(to_int8(input, how.input), how), exact, how);  // Codes in: the same.
      how.floats = true;
      const at::Tensor floats = kernel.forward_static(input, how);
      CHECK_FALSE(floats.is_quantized());
      CHECK((floats.to(at::kDouble) - (relu ? exact.clamp_min(0) : exact)).abs().max().item<double>() < 1e-4);
    }
}

TEST_CASE("a dynamic product is as near as its input's codes are") {
  torch::manual_seed(6);
  const Exact layer({9, 33});
  const Int8Linear kernel(layer.codes, layer.bias);
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{1, 33}, {7, 33}, {2, 5, 33}}) {
    const at::Tensor input = at::randn(shape);
    const at::Tensor exact = at::linear(input.to(at::kDouble), layer.weight, layer.bias.to(at::kDouble));
    const double step = (input.max() - input.min()).item<double>() / 127;
    const at::Tensor bound = 0.51 * step * layer.weight.abs().sum(1) + 1e-4;
    const at::Tensor found = kernel.forward_dynamic(input);
    REQUIRE((found.sizes() == exact.sizes()));
    CHECK(((found.to(at::kDouble) - exact).abs() <= bound).all().item<bool>());
  }
}

TEST_CASE("a convolution of codes, with stride, padding, dilation and groups") {
  torch::manual_seed(7);
  struct Case {
    int64_t in, out, kernel, stride, padding, dilation, groups;
  };
  for (const Case& c : {Case{1, 8, 5, 1, 2, 1, 1}, Case{8, 16, 3, 2, 1, 1, 1}, Case{4, 4, 3, 1, 0, 2, 1}, Case{8, 8, 3, 1, 1, 1, 4},
                        Case{16, 4, 1, 1, 0, 1, 1}}) {
    CAPTURE(c.in);
    CAPTURE(c.groups);
    const torch::nn::Conv2dImpl conv(
        torch::nn::Conv2dOptions(c.in, c.out, c.kernel).stride(c.stride).padding(c.padding).dilation(c.dilation).groups(c.groups));
    const Exact layer({c.out, c.in / c.groups, c.kernel, c.kernel});
    CompressedLayer how{.name = "c", .form = CompressedLayer::Form::kStatic, .input = {0.05, 50}, .output = {0.3, 60}};
    for (const bool relu : {false, true}) {
      const Int8Conv2d kernel(layer.codes, layer.bias, conv);  // LibTorch keeps the first call's ReLU with the packed weight.
      how.relu = relu;
      const at::Tensor input = at::randn({3, c.in, 9, 11});
      const at::Tensor exact = at::conv2d(coded(input, how.input), layer.weight, layer.bias.to(at::kDouble), {c.stride, c.stride},
                                          {c.padding, c.padding}, {c.dilation, c.dilation}, c.groups);
      check_codes(kernel.forward_static(input, how), exact, how);
    }
  }
}

TEST_CASE("a convolution gives each input what a kernel of its own gives, whatever sizes came before") {
  torch::manual_seed(9);
  const Exact layer({6, 4, 3, 3});
  const torch::nn::Conv2dImpl conv(torch::nn::Conv2dOptions(4, 6, 3).padding(1));
  const CompressedLayer how{.name = "c", .form = CompressedLayer::Form::kStatic, .input = {0.05, 60}, .output = {0.3, 64}};
  const Int8Conv2d kernel(layer.codes, layer.bias, conv);
  for (const int64_t samples : {1, 64, 1, 64, 7, 3, 2, 1, 64, 64})
    for (const int64_t size : {8, 5}) {
      const at::Tensor input = at::randn({samples, 4, size, size});
      const Int8Conv2d own(layer.codes, layer.bias, conv);
      CHECK(at::equal(kernel.forward_static(input, how).int_repr(), own.forward_static(input, how).int_repr()));
    }
}

TEST_CASE("convolutions without a kernel are recognised") {
  CHECK(has_int8_kernel(torch::nn::Conv2dImpl(torch::nn::Conv2dOptions(1, 1, 3).padding(1))));
  CHECK_FALSE(has_int8_kernel(torch::nn::Conv2dImpl(torch::nn::Conv2dOptions(1, 1, 3).padding(torch::kSame))));
  CHECK_FALSE(has_int8_kernel(torch::nn::Conv2dImpl(torch::nn::Conv2dOptions(1, 1, 3).padding(1).padding_mode(torch::kReflect))));
}

TEST_CASE("a sum of codes") {
  torch::manual_seed(8);
  const CodeScale left{0.0407, 30}, right{0.0713, 90};  // Sums that lie in the middle of two codes are rare.
  CompressedLayer how{.name = "s", .form = CompressedLayer::Form::kSum, .output = {0.0609, 64}};
  const at::Tensor a = at::randn({2, 3, 4, 5}), b = at::randn({2, 3, 4, 5});
  for (const bool relu : {false, true}) {
    how.relu = relu;
    check_codes(int8_sum(to_int8(a, left), to_int8(b, right), how), coded(a, left) + coded(b, right), how);
  }
}

}  // namespace

}  // namespace cohort
