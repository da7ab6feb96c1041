#include "bench/program/published/piper.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>

#include "cohort/base/random.h"

namespace cohort {
namespace {

using std::size_t;

struct Sums {
  double seconds = 0, bytes = 0;
};

Sums sums_of(const std::vector<LayerVariants>& layers, const std::vector<int>& variant) {
  Sums sums;
  for (size_t i = 0; i < layers.size(); ++i) {
    sums.seconds += layers[i].seconds[variant[i]];
    sums.bytes += layers[i].bytes[variant[i]];
  }
  return sums;
}

bool any_fits(const std::vector<LayerVariants>& layers, double memory, double limit) {
  for (unsigned choice = 0; choice < 1u << layers.size(); ++choice) {
    std::vector<int> variant;
    bool there = true;
    for (size_t i = 0; i < layers.size(); ++i) {
      variant.push_back(choice >> i & 1);
      there &= variant[i] < layers[i].count;
    }
    const Sums sums = sums_of(layers, variant);
    if (there && sums.bytes <= memory && sums.seconds <= limit) return true;
  }
  return false;
}

TEST_CASE("variant choice: as all choices say") {
  int fitting = 0;
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    const auto number = [&](uint64_t what, uint64_t of, uint64_t most) { return static_cast<double>(random_bits(seed, what, of) % most); };
    std::vector<LayerVariants> layers(1 + seed % 10);
    for (size_t i = 0; i < layers.size(); ++i)
      layers[i] = {.seconds = {number(0, i, 8), number(1, i, 8)}, .bytes = {number(2, i, 9), number(3, i, 9)}, .count = seed % 5 ? 2 : 1};
    const double memory = number(4, 0, 4 * layers.size() + 1), limit = number(5, 0, 4 * layers.size() + 1);
    const VariantChoice choice = choose_variants(layers, memory, limit);
    const bool fits = choice.verdict == VariantChoice::LoadVerdict::kFits;
    REQUIRE(choice.verdict != VariantChoice::LoadVerdict::kNotKnown);
    REQUIRE(fits == any_fits(layers, memory, limit));
    if (!fits) continue;
    ++fitting;
    CHECK(sums_of(layers, choice.variant).bytes <= memory);
    CHECK(sums_of(layers, choice.variant).seconds <= limit);
  }
  CHECK(fitting > 200);
}

TEST_CASE("variant choice: many equal layers are soon decided") {
  const std::vector<LayerVariants> layers(400, {.seconds = {1, 2}, .bytes = {10, 7}, .count = 2});
  CHECK(choose_variants(layers, 4000 - 599, 600).verdict == VariantChoice::LoadVerdict::kFits);
  CHECK(choose_variants(layers, 4000 - 599, 599).verdict == VariantChoice::LoadVerdict::kNone);
}

}  // namespace
}  // namespace cohort
