#include "cohort/parallel/zero/zero_units.h"

#include <ATen/ops/ones.h>
#include <doctest/doctest.h>

#include "cohort/parallel/common/flat_piece.h"

namespace cohort {
namespace {

TEST_CASE("a tensor and its views have memory while it is attached, and throw when it is not") {
  UnitMemory memory(1 << 20);
  const at::Tensor whole = without_memory(100, at::kFloat);
  CHECK_THROWS_AS(whole.sum(), c10::Error);
  memory.attach(whole);
  const at::Tensor view = alias_of(whole, 20, {2, 3});
  memory.detach(whole);
  CHECK_FALSE(has_memory(view));
  CHECK_THROWS_WITH_AS(view.sum(), doctest::Contains("gather_weights()"), c10::Error);
  CHECK_THROWS_AS(view.data_ptr<float>(), c10::Error);
  memory.attach(whole);
  whole.fill_(2);
  CHECK(has_memory(view));
  CHECK(view.sum().item<double>() == 12);
  CHECK(memory.lent_bytes() == 400);
  memory.detach(whole);
  CHECK(memory.lent_bytes() == 0);
  CHECK_THROWS(view.sum());
  CHECK_THROWS(memory.detach(whole));
}

TEST_CASE("blocks are used again, and no more than the limit is kept") {
  UnitMemory memory(1000);
  const at::Tensor a = without_memory(200, at::kByte), b = without_memory(190, at::kByte), c = without_memory(900, at::kByte);
  memory.attach(a);
  const void* const block = a.data_ptr();
  memory.detach(a);
  memory.attach(b);
  CHECK(b.data_ptr() == block);
  memory.detach(b);
  memory.attach(c);  // 200 + 900 > 1000: the idle block goes.
  CHECK(memory.peak_bytes() == 900);
  memory.attach(a);  // What is needed is lent, whatever the limit.
  CHECK(memory.peak_bytes() == 1100);
}

}  // namespace
}  // namespace cohort
