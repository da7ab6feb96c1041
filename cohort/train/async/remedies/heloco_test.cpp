#include <ATen/ops/tensor.h>
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "cohort/train/async/remedies/remedies.h"

namespace cohort {
namespace {

/// What an outer gradient becomes beside an outer momentum, whose mean is half of it.
std::vector<double> corrected(const std::vector<double>& gradient, const std::vector<double>& momentum, int64_t staleness = 3) {
  const at::Tensor change = -at::tensor(gradient, at::kDouble);
  std::vector<at::Tensor> changes{change};
  const std::vector<at::Tensor> momenta{at::tensor(momentum, at::kDouble)};
  StaleChange late{staleness, changes, momenta, 0.5};
  make_remedy(parse_remedy("heloco"))->correct_change(late);
  std::vector<double> out;
  for (int64_t i = 0; i < change.numel(); ++i) out.push_back(-change[i].item<double>());
  return out;
}

TEST_CASE("heloco: what goes with the outer momentum stays, what goes across is turned, what goes against it is shrunk") {
  const std::vector<double> ahead{2, 0};
  CHECK(corrected({1, 0.5}, ahead) == std::vector<double>{1, 0.5});
  // Confidence 1 / (1 + 1): half of what goes against the momentum is taken out.
  const std::vector<double> against = corrected({-1, 0}, ahead);
  CHECK(against[0] == doctest::Approx(-0.5));
  CHECK(against[1] == doctest::Approx(0));
  // Turned by a quarter, and as long as before.
  const std::vector<double> across = corrected({0, 1}, ahead);
  CHECK(across[0] == doctest::Approx(0.25 / std::sqrt(0.625)));
  CHECK(across[1] == doctest::Approx(0.75 / std::sqrt(0.625)));
  CHECK(std::hypot(across[0], across[1]) == doctest::Approx(1));
  // At the border between the two, and far below the momentum's size, there is no jump.
  CHECK(corrected({1e-9, -1e-3}, ahead)[1] == doctest::Approx(-1e-3).epsilon(1e-3));
  CHECK(corrected({-1, 0}, ahead, /*staleness=*/0) == std::vector<double>{-1, 0});
  CHECK(corrected({-1, 0}, {0, 0}) == std::vector<double>{-1, 0});
  CHECK(corrected({0, 0}, ahead)[0] == 0);
}

}  // namespace
}  // namespace cohort
