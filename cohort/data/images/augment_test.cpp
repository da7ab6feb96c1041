#include "cohort/data/images/augment.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "tests/support/errors.h"

using namespace cohort;

namespace {

const DataShape kPicture{.kind = DataShape::Kind::kImage, .input = {2, 8, 16}, .num_classes = 10};
constexpr int64_t kElements = 2 * 8 * 16;

/// Samples 0, 1, ... whose values are all different.
Batch batch_of(int64_t samples) {
  Batch batch{.num_samples = samples, .values = std::vector<float>(static_cast<size_t>(samples * kElements))};
  std::iota(batch.values.begin(), batch.values.end(), 0.0F);
  return batch;
}

std::vector<float> sample_of(const Batch& batch, int64_t sample) {
  return {batch.values.begin() + sample * kElements, batch.values.begin() + (sample + 1) * kElements};
}

Batch changed(const std::string& how, const std::vector<int64_t>& indices, int64_t step, uint64_t seed = 1) {
  Batch all = batch_of(200), batch{.num_samples = static_cast<int64_t>(indices.size())};
  for (const int64_t index : indices) std::ranges::copy(sample_of(all, index), std::back_inserter(batch.values));
  Augmentation(how, kPicture, seed).apply(batch, indices, step);
  return batch;
}

std::vector<int64_t> first_indices(int64_t count) {
  std::vector<int64_t> indices(static_cast<size_t>(count));
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

}  // namespace

TEST_CASE("augment: a picture becomes the same whoever reads it beside which others") {
  const Batch whole = changed("crop,flip", first_indices(100), 3);
  CHECK(sample_of(changed("crop,flip", {70, 5, 99}, 3), 1) == sample_of(whole, 5));
  CHECK(sample_of(changed("crop,flip", {99}, 3), 0) == sample_of(whole, 99));
  CHECK(changed("crop,flip", first_indices(100), 4).values != whole.values);
  CHECK(changed("crop,flip", first_indices(100), 3, 2).values != whole.values);
}

TEST_CASE("augment: flip mirrors one picture in two, in every channel, and does nothing else") {
  const std::vector<int64_t> indices = first_indices(200);
  const Batch before = batch_of(200), after = changed("flip", indices, 0);
  int flipped = 0;
  for (int64_t i = 0; i < 200; ++i) {
    std::vector<float> mirrored = sample_of(before, i);
    for (auto row = mirrored.begin(); row != mirrored.end(); row += 16) std::reverse(row, row + 16);
    const bool is_mirrored = sample_of(after, i) == mirrored;
    CHECK((is_mirrored || sample_of(after, i) == sample_of(before, i)));
    flipped += is_mirrored;
  }
  CHECK(flipped > 70);
  CHECK(flipped < 130);
}

TEST_CASE("augment: crop moves by up to an eighth, each distance as often, and reflects at the edge") {
  const Batch before = batch_of(200), after = changed("crop", first_indices(200), 0);
  std::set<std::pair<int64_t, int64_t>> seen;
  for (int64_t i = 0; i < 200; ++i) {
    const std::vector<float> was = sample_of(before, i), is = sample_of(after, i);
    const auto at = static_cast<int64_t>(is[4 * 16 + 8] - was[0]);  // Where the value in the middle comes from.
    const int64_t down = at / 16 - 4, right = at % 16 - 8;
    seen.insert({down, right});
    bool is_moved = true;
    for (int64_t c = 0; c < 2; ++c)
      for (int64_t y = 0; y < 8; ++y)
        for (int64_t x = 0; x < 16; ++x) {
          int64_t from_y = y + down, from_x = x + right;
          if (from_y < 0) from_y = -from_y;
          if (from_x < 0) from_x = -from_x;
          if (from_y > 7) from_y = 14 - from_y;
          if (from_x > 15) from_x = 30 - from_x;
          is_moved = is_moved && is[(c * 8 + y) * 16 + x] == was[(c * 8 + from_y) * 16 + from_x];
        }
    CHECK(is_moved);
  }
  CHECK(seen.size() == 3 * 5);
}

TEST_CASE("augment: words that are none, and data that are no pictures, are refused") {
  for (const char* bad : {"crop,", "turn", "crop,crop", ",", "crop flip", "", "none,flip"})
    CHECK(error_of([&] { Augmentation(bad, kPicture, 1); }).find("is none of: crop, flip, crop,flip, none") != std::string::npos);
  CHECK(error_of([] { Augmentation("flip", {.input = {7}, .num_classes = 2}, 1); }) ==
        "--augment flip changes pictures, and a sample of these data is [7]; leave it out");
  CHECK(!Augmentation().is_on());
  CHECK(!Augmentation("none", {.input = {7}, .num_classes = 2}, 1).is_on());
}
