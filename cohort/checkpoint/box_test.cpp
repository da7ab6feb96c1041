#include "cohort/checkpoint/box.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "cohort/base/files/safetensors.h"
#include "cohort/base/random.h"

using namespace cohort;

namespace {

/// Linear position in the whole tensor of element `i` of a box.
int64_t position(const Box& box, const std::vector<int64_t>& whole, int64_t i) {
  int64_t linear = 0, stride = 1;
  for (size_t d = whole.size(); d-- > 0;) {
    linear += (box.begin[d] + i % box.shape[d]) * stride;
    i /= box.shape[d];
    stride *= whole[d];
  }
  return linear;
}

Box random_box(const std::vector<int64_t>& whole, uint64_t seed) {
  Box box;
  for (size_t d = 0; d < whole.size(); ++d) {
    box.begin.push_back(static_cast<int64_t>(random_bits(seed, d, 0) % static_cast<uint64_t>(whole[d] + 1)));
    box.shape.push_back(static_cast<int64_t>(random_bits(seed, d, 1) % static_cast<uint64_t>(whole[d] - box.begin[d] + 1)));
  }
  return box;
}

}  // namespace

TEST_CASE("box_error survives any numbers") {
  CHECK(box_error({{0, 0}, {2, 3}}, {2, 3}).empty());
  CHECK(box_error({{}, {}}, {}).empty());
  CHECK(box_error({{2}, {0}}, {2}).empty());
  CHECK(!box_error({{1}, {2}}, {2}).empty());
  CHECK(!box_error({{-1}, {1}}, {2}).empty());
  CHECK(!box_error({{0}, {-1}}, {2}).empty());
  CHECK(!box_error({{INT64_MAX}, {INT64_MAX}}, {2}).empty());
  CHECK(!box_error({{0}, {1}}, {1, 1}).empty());
  CHECK(!box_error({{0, 0}, {1}}, {1, 1}).empty());
}

TEST_CASE("cover_error finds holes and overlaps") {
  CHECK(cover_error({{{0}, {2}}, {{2}, {3}}}, {5}).empty());
  CHECK(cover_error({{{2}, {3}}, {{0}, {2}}, {{4}, {0}}}, {5}).empty());
  CHECK(cover_error({{{}, {}}}, {}).empty());
  CHECK(cover_error({}, {0, 3}).empty());
  CHECK(cover_error({{{0, 0}, {2, 1}}, {{0, 1}, {2, 2}}}, {2, 3}).empty());
  CHECK(cover_error({{{0}, {2}}, {{3}, {2}}}, {5}) == "the pieces hold 4 of 5 elements");
  CHECK(cover_error({}, {}) == "the pieces hold 0 of 1 elements");
  CHECK(cover_error({{{0}, {3}}, {{2}, {3}}}, {5}) == "pieces at [0] and at [2] overlap");
  CHECK(cover_error({{{}, {}}, {{}, {}}}, {}).find("overlap") != std::string::npos);
  // The right number of elements, yet one twice and one missing.
  CHECK(cover_error({{{0, 0}, {2, 2}}, {{0, 1}, {2, 1}}}, {2, 3}).find("overlap") != std::string::npos);
  CHECK(cover_error({{{0}, {INT64_MAX}}, {{0}, {INT64_MAX}}}, {INT64_MAX}).find("overlap") != std::string::npos);
}

TEST_CASE("copy_box equals an element-by-element copy for random boxes of 0 to 4 dimensions") {
  const std::vector<std::vector<int64_t>> shapes = {{}, {1}, {7}, {3, 4}, {4, 1, 5}, {2, 3, 4}, {3, 2, 1, 5}};
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    const std::vector<int64_t>& whole = shapes[seed % shapes.size()];
    const Box from = random_box(whole, random_bits(seed, 1)), to = random_box(whole, random_bits(seed, 2));
    REQUIRE(box_error(from, whole).empty());
    const auto common = intersection(from, to);
    std::vector<int32_t> source(static_cast<size_t>(from.num_elements())), target(static_cast<size_t>(to.num_elements()), -1);
    for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<int32_t>(position(from, whole, static_cast<int64_t>(i)));
    if (common) copy_box(*common, {source.data(), from}, {target.data(), to}, 4);
    int64_t copied = 0;
    for (size_t i = 0; i < target.size(); ++i) {
      const int64_t expected = position(to, whole, static_cast<int64_t>(i));
      const bool inside = std::find(source.begin(), source.end(), expected) != source.end();
      CHECK(target[i] == (inside ? expected : -1));
      copied += inside;
    }
    CHECK(copied == (common ? common->num_elements() : 0));
  }
}
