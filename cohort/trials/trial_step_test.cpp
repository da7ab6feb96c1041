#include "cohort/trials/trial_step.h"

#include <ATen/ops/randint.h>
#include <doctest/doctest.h>

#include <cmath>

namespace cohort {
namespace {

TEST_CASE("wrong targets are counted as by argmax, ties and all") {
  for (const int64_t num_classes : {1, 2, 10, 17, 256})
    for (const int64_t num_targets : {1, 7, 500}) {
      // Few different values, so that many are as high as the highest.
      const at::Tensor logits = at::randint(-2, 3, {num_targets, num_classes}, at::kFloat);
      const at::Tensor target = at::randint(num_classes, {num_targets}, at::kLong);
      INFO(num_targets, " of ", num_classes, " classes");
      CHECK(count_wrong_targets(logits, target) == num_targets - logits.argmax(-1).eq(target).sum().item<int64_t>());
      CHECK(count_wrong_targets(logits, logits.argmax(-1)) == 0);
      const at::Tensor transposed = logits.t().contiguous().t();
      CHECK(count_wrong_targets(transposed, logits.argmax(-1)) == 0);
    }
}

TEST_CASE("a class that is not a number is likelier than all") {
  at::Tensor logits = at::randint(3, {2, 4}, at::kFloat);
  logits[1][2] = NAN;
  CHECK(count_wrong_targets(logits, logits.argmax(-1).clone().fill_(3)) >= 1);
  CHECK(count_wrong_targets(logits.narrow(0, 1, 1), at::randint(1, {1}, at::kLong)) == 1);
}

}  // namespace

}  // namespace cohort
