// Kendall 1938; variance with ties: Kendall 1970, "Rank Correlation Methods", chapter 4.
#include "cohort/study/analysis/rank_correlation.h"

#include <cmath>
#include <cstddef>
#include <map>

namespace cohort::study {
namespace {

int sign(double a, double b) { return a < b ? -1 : a > b ? 1 : 0; }

/// Sums over groups of equal values, of t (t - 1), t (t - 1) (t - 2) and t (t - 1) (2 t + 5).
struct Ties {
  double pairs = 0, triples = 0, variance = 0;
};

Ties ties_of(std::span<const double> values) {
  std::map<double, double> counts;
  for (const double value : values) counts[value] += 1;
  Ties ties;
  for (const auto& [value, t] : counts) {
    ties.pairs += t * (t - 1);
    ties.triples += t * (t - 1) * (t - 2);
    ties.variance += t * (t - 1) * (2 * t + 5);
  }
  return ties;
}

}  // namespace

double chance_of_rise(std::span<const double> x, std::span<const double> y) {
  if (x.size() < 5) return 1;
  double score = 0;
  for (size_t i = 0; i < x.size(); ++i)
    for (size_t j = 0; j < i; ++j) score += sign(x[i], x[j]) * sign(y[i], y[j]);
  const double n = static_cast<double>(x.size());
  const Ties of_x = ties_of(x), of_y = ties_of(y);
  const double variance = (n * (n - 1) * (2 * n + 5) - of_x.variance - of_y.variance) / 18 + of_x.pairs * of_y.pairs / (2 * n * (n - 1)) +
                          of_x.triples * of_y.triples / (9 * n * (n - 1) * (n - 2));
  if (variance <= 0 || score <= 0) return 1;
  return 0.5 * std::erfc((score - 1) / std::sqrt(2 * variance));  // Less 1: the score moves in steps of 2.
}

}  // namespace cohort::study
