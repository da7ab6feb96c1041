#include "cohort/data/source/split.h"

#include <doctest/doctest.h>

#include <vector>

#include "cohort/base/error.h"

namespace cohort {
namespace {

TEST_CASE("first samples: those of the source, and no others") {
  const std::shared_ptr<const DataSource> whole = open_data("synthetic:1x2x2,samples=40,classes=3").train;
  const std::shared_ptr<const DataSource> first = first_samples(whole, 5);
  CHECK(first->num_samples() == 5);
  CHECK(first->shape().input == whole->shape().input);
  Batch a, b;
  const std::vector<int64_t> indices = {4, 0};
  first->read(indices, a);
  whole->read(indices, b);
  CHECK(a.values == b.values);
  CHECK(a.targets == b.targets);
  const std::vector<int64_t> beyond = {5};
  CHECK_THROWS_AS(first->read(beyond, a), Error);
  CHECK(first_samples(whole, 36) == whole);
  CHECK(first_samples(whole, 100) == whole);
  CHECK(first_samples(whole, -1) == whole);
}

}  // namespace
}  // namespace cohort
