#include "cohort/models/loss/losses.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/support/errors.h"

using namespace cohort;

namespace {

std::vector<double> probabilities(const at::Tensor& row, double temperature) {
  std::vector<double> out;
  double sum = 0;
  for (int64_t k = 0; k < row.numel(); ++k) sum += out.emplace_back(std::exp(row[k].item<double>() / temperature));
  for (double& value : out) value /= sum;
  return out;
}

/// The formula, number by number.
double by_hand(const at::Tensor& student, const at::Tensor& teacher, double temperature) {
  double sum = 0;
  for (int64_t row = 0; row < student.size(0); ++row) {
    const std::vector<double> p = probabilities(teacher[row], temperature), q = probabilities(student[row], temperature);
    for (size_t k = 0; k < p.size(); ++k) sum += p[k] * (std::log(p[k]) - std::log(q[k]));
  }
  return temperature * std::min(temperature, 1.0) * sum / static_cast<double>(student.size(0));
}

}  // namespace

TEST_CASE("distillation: the soft part is its formula, by hand, and its gradient min(T, 1) (q - p) / rows") {
  for (const double temperature : {0.5, 1.0, 4.0, 20.0}) {
    CAPTURE(temperature);
    const at::Tensor student = at::randn({5, 3}).requires_grad_(), teacher = at::randn({5, 3}) * 3;
    const at::Tensor loss = soft_target_loss(student, teacher, temperature);
    CHECK(loss.item<double>() == doctest::Approx(by_hand(student, teacher, temperature)).epsilon(1e-4));
    loss.backward();
    for (int64_t row = 0; row < 5; ++row) {
      const std::vector<double> p = probabilities(teacher[row], temperature), q = probabilities(student[row], temperature);
      for (int64_t k = 0; k < 3; ++k) {
        const auto place = static_cast<size_t>(k);
        CHECK(student.grad()[row][k].item<double>() ==
              doctest::Approx(std::min(temperature, 1.0) * (q[place] - p[place]) / 5).epsilon(1e-3));
      }
    }
  }
}

TEST_CASE("distillation: a student that gives what its teacher gives has no soft loss, whatever is added to all scores") {
  const at::Tensor scores = at::randn({4, 7});
  CHECK(std::abs(soft_target_loss(scores + 5, scores, 2).item<double>()) < 1e-5);
  CHECK(soft_target_loss(at::zeros({4, 7}), scores, 2).item<double>() > 1e-3);
}

TEST_CASE("distillation: at no temperature is the gradient larger than that of a label, however sure the teacher is") {
  // A student that knows nothing, and a teacher that is sure: the most that either loss asks for.
  const at::Tensor teacher = at::eye(5) * 1000;
  const double of_labels = (at::eye(5) - 0.2).norm().item<double>() / 5;  // q - (0 .. 1 .. 0), a mean over rows.
  for (const double temperature : {0.1, 1.0, 4.0, 100.0}) {
    CAPTURE(temperature);
    const at::Tensor student = at::zeros({5, 5}).requires_grad_();
    soft_target_loss(student, teacher, temperature).backward();
    CHECK(student.grad().norm().item<double>() <= of_labels * 1.0001);
  }
}

TEST_CASE("distillation: parts of a batch, weighted by their samples, add up to the whole; positions of text are rows") {
  const at::Tensor student = at::randn({6, 2, 5}), teacher = at::randn({6, 2, 5});
  const double whole = soft_target_loss(student, teacher, 3).item<double>();
  const double parts = (soft_target_loss(student.narrow(0, 0, 2), teacher.narrow(0, 0, 2), 3).item<double>() * 2 +
                        soft_target_loss(student.narrow(0, 2, 4), teacher.narrow(0, 2, 4), 3).item<double>() * 4) /
                       6;
  CHECK(parts == doctest::Approx(whole).epsilon(1e-5));
  CHECK(soft_target_loss(student.reshape({12, 5}), teacher, 3).item<double>() == doctest::Approx(whole).epsilon(1e-6));
}

TEST_CASE("distillation: scores of other classes are refused, with both shapes") {
  const std::string error = error_of([] { soft_target_loss(at::randn({5, 2}), at::randn({5, 3}), 4); });
  CHECK(error.find("(5, 3)") != std::string::npos);
  CHECK(error.find("(5, 2)") != std::string::npos);
  CHECK(!error_of([] { soft_target_loss(at::randn({4, 3}), at::randn({5, 3}), 4); }).empty());
}
