#pragma once

#include <span>

namespace cohort::study {

/// How likely `y` rises with `x` as clearly as this if the two have nothing to do with each other: one-sided p of Kendall's rank
/// correlation (normal approximation with ties, fair from 5 pairs on). 1 for fewer than 5 pairs, or where all x or all y are equal.
/// Infinite values rank last. O(n^2).
double chance_of_rise(std::span<const double> x, std::span<const double> y);

}  // namespace cohort::study
