#include "cohort/models/loss/losses.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/quantize_per_tensor.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>

#include <cmath>

namespace cohort {
namespace {

at::Tensor numbers(at::IntArrayRef sizes) { return at::randn(sizes, at::TensorOptions(at::kFloat)); }
double distance(const at::Tensor& student, const at::Tensor& teacher) { return attention_distance(student, teacher).item<double>(); }

TEST_CASE("attention transfer: by hand") {
  // Two positions. Squares over channels: student 1 + 3 = 4 and 0; teacher 4 and 3: a = (1, 0) and (0.8, 0.6).
  const at::Tensor student = at::tensor({1.0F, 0.0F, std::sqrt(3.0F), 0.0F}).view({1, 2, 1, 2});
  const at::Tensor teacher = at::tensor({2.0F, std::sqrt(3.0F)}).view({1, 1, 1, 2});
  CHECK(distance(student, teacher) == doctest::Approx(0.2 * 0.2 + 0.6 * 0.6));
  // Of text the last dimension is summed over.
  CHECK(distance(student.view({1, 2, 2}).transpose(1, 2), teacher.view({1, 1, 2}).transpose(1, 2)) == doctest::Approx(0.4));
}

TEST_CASE("attention transfer: order and scale of channels do not matter, parts of a batch add up, maps are pooled to the smaller") {
  at::manual_seed(1);
  const at::Tensor student = numbers({4, 3, 6, 6}), teacher = numbers({4, 5, 6, 6});
  const double whole = distance(student, teacher);
  CHECK(whole > 0);
  CHECK(distance(student.flip(1) * 7, teacher) == doctest::Approx(whole).epsilon(1e-5));
  CHECK(distance(teacher, teacher) == doctest::Approx(0).epsilon(1e-6));
  const double first = distance(student.narrow(0, 0, 1), teacher.narrow(0, 0, 1)),
               rest = distance(student.narrow(0, 1, 3), teacher.narrow(0, 1, 3));
  CHECK(whole == doctest::Approx((first + 3 * rest) / 4).epsilon(1e-5));
  // Each number of the small map four times is the same map.
  CHECK(distance(student, student.repeat_interleave(2, 2).repeat_interleave(2, 3)) == doctest::Approx(0).epsilon(1e-6));
  CHECK(distance(student.narrow(2, 0, 3), teacher) > 0);
  CHECK(distance(at::zeros({1, 2, 3, 3}), teacher.narrow(0, 0, 1)) == doctest::Approx(1));
  const at::Tensor codes = at::quantize_per_tensor(teacher, 0.001, 0, at::kQInt32);
  CHECK(distance(student, codes) == doctest::Approx(whole).epsilon(1e-2));
}

TEST_CASE("attention transfer: the gradient is that of the difference quotient, and none goes to the teacher") {
  at::manual_seed(2);
  const at::Tensor student = numbers({2, 2, 2, 3}).requires_grad_(true), teacher = numbers({2, 3, 4, 3}).requires_grad_(true);
  attention_distance(student, teacher).backward();
  CHECK(!teacher.grad().defined());
  const double step = 1e-2;
  for (int64_t i = 0; i < student.numel(); ++i) {
    const at::Tensor up = student.detach().clone(), down = student.detach().clone();
    up.view({-1})[i] += step;
    down.view({-1})[i] -= step;
    CHECK(student.grad().view({-1})[i].item<double>() ==
          doctest::Approx((distance(up, teacher) - distance(down, teacher)) / (2 * step)).epsilon(0.02).scale(0.1));
  }
  const at::Tensor silent = at::zeros({1, 2, 3, 3}).requires_grad_(true);
  attention_distance(silent, teacher.narrow(0, 0, 1)).backward();
  CHECK(silent.grad().isfinite().all().item<bool>());
}

TEST_CASE("attention transfer: outputs without positions, or with others, are refused before the training") {
  CHECK(attention_mismatch({1, 4, 8, 8}, {1, 9, 4, 4}).empty());
  CHECK(attention_mismatch({1, 16, 32}, {1, 16, 64}).empty());
  CHECK(attention_mismatch({1, 10}, {1, 10}).find("both must have positions") != std::string::npos);
  CHECK(attention_mismatch({1, 4, 8, 8}, {1, 8, 8}).find("both must have positions") != std::string::npos);
  CHECK(attention_mismatch({1, 16, 32}, {1, 8, 32}).find("not as many positions") != std::string::npos);
}

}  // namespace
}  // namespace cohort
