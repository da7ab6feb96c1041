#include "cohort/study/noise/noise_scale.h"

#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "cohort/base/fail.h"

namespace cohort::study {
namespace {

struct Spread {
  double sum = 0, squares = 0, count = 0;
  void add(double value) { sum += value, squares += value * value, ++count; }
  double mean() const { return sum / count; }
  double error() const { return std::sqrt((squares / count - mean() * mean()) / (count - 1)); }
};

/// One step of ranks and micro-batches with these sizes: sample gradients are G + Gaussian noise of variances `variance`. Returns what a
/// run measures: pieces weighted by their size, so that the small batch is the mean size of a piece.
NoiseMeasurement sampled_step(std::mt19937_64& bits, const std::vector<double>& gradient, const std::vector<double>& variance,
                              const std::vector<int>& pieces) {
  std::normal_distribution<double> normal;
  double all = 0, small_squared = 0, large_squared = 0;
  for (const int size : pieces) all += size;
  std::vector<double> whole(gradient.size(), 0);
  for (const int size : pieces) {
    double squared = 0;
    for (size_t d = 0; d < gradient.size(); ++d) {
      double mean = 0;
      for (int sample = 0; sample < size; ++sample) mean += (gradient[d] + std::sqrt(variance[d]) * normal(bits)) / size;
      whole[d] += mean * size / all;
      squared += mean * mean;
    }
    small_squared += squared * size / all;
  }
  for (const double value : whole) large_squared += value * value;
  return {1, small_squared, all / static_cast<double>(pieces.size()), large_squared, all};
}

/// The ratio of averages over all steps.
struct WholeNoiseScale {
  NoiseEstimate sum;
  int64_t count = 0;
  void add(double small_squared, double small, double large_squared, double large) {
    const NoiseEstimate one = two_batch_estimate(small_squared, small, large_squared, large);
    sum.gradient_squared += one.gradient_squared, sum.trace += one.trace, ++count;
  }
  double gradient_squared() const { return sum.gradient_squared / count; }
  double trace() const { return sum.trace / count; }
  double noise_scale() const { return noise_scale_of({gradient_squared(), trace()}); }
};

TEST_CASE("noise scale: both estimates are unbiased for sampled Gaussian gradients, whatever the pieces") {
  const std::vector<double> gradient = {0.5, -0.25, 0.1, 0, 0.3}, variance = {1, 4, 0.25, 2, 0.5};
  const double gradient_squared = 0.25 + 0.0625 + 0.01 + 0.09, trace = 7.75;
  const std::vector<std::vector<int>> cases = {{4, 4}, {1, 1, 1, 1, 1, 1, 1, 1}, {7, 1}, {5, 3, 3, 2}, {16, 16, 15}, {1, 2}, {2, 30, 1, 9}};
  for (const auto& pieces : cases) {
    CAPTURE(pieces.size());
    CAPTURE(pieces.front());
    Spread g, t;
    WholeNoiseScale scale;
    for (uint64_t seed = 1; seed <= 3000; ++seed) {
      std::mt19937_64 bits(seed * 7919 + pieces.size());
      const NoiseMeasurement m = sampled_step(bits, gradient, variance, pieces);
      const NoiseEstimate one = two_batch_estimate(m.small_squared, m.small, m.large_squared, m.large);
      g.add(one.gradient_squared);
      t.add(one.trace);
      scale.add(m.small_squared, m.small, m.large_squared, m.large);
    }
    CHECK(std::abs(g.mean() - gradient_squared) < 4 * g.error());
    CHECK(std::abs(t.mean() - trace) < 4 * t.error());
    // The errors themselves are small enough that a wrong weighting would show.
    CHECK(t.error() < 0.03 * trace);
    CHECK(scale.count == 3000);
    CHECK(scale.trace() == doctest::Approx(t.mean()));
    CHECK(scale.gradient_squared() == doctest::Approx(g.mean()));
    CHECK(scale.noise_scale() == doctest::Approx(trace / gradient_squared).epsilon(0.35));
  }
}

TEST_CASE("noise scale: pieces weighted alike would need another small batch than the mean size") {
  // The trap: the plain mean of |g|^2 over pieces of 7 and 1 samples taken as a small batch of 4.
  const std::vector<double> gradient = {0.5}, variance = {3};
  Spread wrong;
  for (uint64_t seed = 1; seed <= 4000; ++seed) {
    std::mt19937_64 bits(seed);
    std::normal_distribution<double> normal;
    const double seven = 0.5 + std::sqrt(3.0 / 7) * normal(bits), one = 0.5 + std::sqrt(3.0) * normal(bits);
    const double large = (7 * seven + one) / 8;
    wrong.add(two_batch_estimate((seven * seven + one * one) / 2, 4, large * large, 8).trace);
  }
  CHECK(std::abs(wrong.mean() - 3) > 20 * wrong.error());
}

TEST_CASE("noise scale: the ratio of averages, and no number where there is none") {
  WholeNoiseScale scale;
  CHECK(std::isnan(scale.noise_scale()));
  scale.add(3, 1, 2, 2);  // |G|^2 = 1, trace = 2
  scale.add(7, 1, 5, 2);  // |G|^2 = 3, trace = 4
  CHECK(scale.gradient_squared() == doctest::Approx(2));
  CHECK(scale.trace() == doctest::Approx(3));
  CHECK(scale.noise_scale() == doctest::Approx(1.5));  // Not (2 + 4/3) / 2.
  WholeNoiseScale noise;
  noise.add(4, 1, 1, 2);  // |G|^2 = -2
  CHECK(noise.gradient_squared() == doctest::Approx(-2));
  CHECK(noise.trace() == doctest::Approx(6));
  CHECK(std::isnan(noise.noise_scale()));
  CHECK_THROWS_AS(scale.add(1, 0, 1, 2), Error);
  CHECK_THROWS_AS(scale.add(1, 2, 1, 2), Error);
  CHECK_THROWS_AS(scale.add(1, 4, 1, 2), Error);
  CHECK_THROWS_AS(scale.add(NAN, 1, 1, 2), Error);
  CHECK_THROWS_AS(scale.add(1, 1, INFINITY, 2), Error);
  CHECK_THROWS_AS(RecentNoiseScale(0), Error);
}

TEST_CASE("noise scale: the recent value is the plain mean at first, then follows") {
  RecentNoiseScale recent(10);
  WholeNoiseScale whole;
  for (int i = 0; i < 10; ++i) {
    recent.add(3 + i, 1, 2, 2);
    whole.add(3 + i, 1, 2, 2);
  }
  CHECK(recent.mean().trace == doctest::Approx(whole.trace()));
  CHECK(recent.mean().gradient_squared == doctest::Approx(whole.gradient_squared()));
  RecentNoiseScale restored(10);
  restored.restore(recent.num_steps(), recent.mean());
  for (int i = 0; i < 100; ++i) {
    recent.add(3, 1, 2, 2);
    restored.add(3, 1, 2, 2);
  }
  CHECK(recent.noise_scale() == restored.noise_scale());  // As a resumed run has it.
  CHECK(recent.noise_scale() == doctest::Approx(2).epsilon(0.001));
}

TEST_CASE("noise scale: windows by ratio of steps, each with enough measurements and an honest error") {
  std::vector<NoiseMeasurement> run;
  std::mt19937_64 bits(11);
  const std::vector<double> gradient(20, 0.3), variance(20, 1.5);  // Scale 16.67.
  for (int64_t step = 10; step <= 2000; step += 10) {
    NoiseMeasurement one = sampled_step(bits, gradient, variance, {8, 8});
    one.step = step;
    run.push_back(one);
  }
  const std::vector<NoiseWindow> windows = noise_windows(run);
  CHECK(windows.size() >= 3);
  CHECK(windows.size() <= 8);
  int64_t total = 0, covered = 0;
  for (size_t i = 0; i < windows.size(); ++i) {
    total += windows[i].num_measurements;
    CHECK(windows[i].num_measurements >= 10);
    if (i > 0) CHECK(windows[i].first_step > windows[i - 1].last_step);
    CHECK(windows[i].batch == doctest::Approx(16));
    if (std::abs(windows[i].noise_scale - 5.0 / 0.3) < 2.5 * windows[i].standard_error) ++covered;
  }
  CHECK(total == static_cast<int64_t>(run.size()));
  CHECK(windows.back().last_step == 2000);
  CHECK(covered + 1 >= static_cast<int64_t>(windows.size()));
  CHECK(windows.back().standard_error < windows.front().standard_error * 2);
  CHECK(noise_windows({}).empty());
  const std::vector<NoiseWindow> few = noise_windows(std::span(run).first(4));
  CHECK(few.size() == 1);
  CHECK(few[0].num_measurements == 4);
  const std::vector<NoiseWindow> one = noise_windows(std::span(run).first(1));
  CHECK(one.size() == 1);
  CHECK(std::isnan(one[0].standard_error));
}

}  // namespace
}  // namespace cohort::study
