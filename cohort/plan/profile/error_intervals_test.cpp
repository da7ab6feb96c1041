#include "cohort/plan/profile/calibration_file.h"

#include <doctest/doctest.h>

#include <cmath>
#include <random>

namespace cohort {
namespace {

ForecastError error(const std::string& model, const std::string& kind, double ratio) {
  return {.model = model,
          .parameters = 7,
          .layout_class = kind,
          .precision = "fp32",
          .steps = 20,
          .predicted_step_seconds = 2,
          .measured_step_seconds = 2 * ratio};
}

const Layout kTwo{.dp = 2};

TEST_CASE("error intervals: what decides how good a forecast is") {
  CHECK(layout_class({}) == "single");
  CHECK(layout_class({.dp = 2}) == "dp");
  CHECK(layout_class({.dp = 4, .zero = 3}) == "dp zero=3");
  CHECK(layout_class({.dp = 2, .pp = 2, .schedule = "zb-h1", .microbatches = 8}) == "dp pp zb-h1");
  CHECK(layout_class({.pp = 2, .schedule = "mine.json"}) == "pp table");
  CHECK(layout_class({.tp = 2, .recompute = "0-3"}) == "tp recompute");
  CHECK(layout_class({.dp = 2, .compress = "int8"}) == "dp compress=int8");
}

TEST_CASE("error intervals: known numbers") {
  // Logarithms -0.1, 0, 0.1: mean 0, deviation 0.1; t(0.95, 2) = 2.92.
  const ForecastIntervals known({error("fc", "dp", std::exp(-0.1)), error("fc", "dp", 1), error("fc", "dp", std::exp(0.1))}, "fc", 7);
  const ErrorInterval* const its = known.of(kTwo, "fp32");
  REQUIRE(its);
  CHECK(its->high == doctest::Approx(std::exp(2.920 * 0.1 * std::sqrt(4.0 / 3))).epsilon(1e-9));
  CHECK(its->low == doctest::Approx(1 / its->high).epsilon(1e-9));
  CHECK(its->from == "3 runs of fc as dp");
  CHECK(ForecastIntervals().of(kTwo, "fp32") == nullptr);
  CHECK(ForecastIntervals({error("fc", "dp", 1), error("fc", "dp", 1)}, "fc", 7).of(kTwo, "fp32") == nullptr);
}

TEST_CASE("error intervals: agreement by chance does not promise more than the noise, and the forecast is always inside") {
  const std::vector<ForecastError> same(200, error("fc", "dp", 1));
  const ErrorInterval equal = *ForecastIntervals(same, "fc", 7).of(kTwo, "fp32");
  CHECK(equal.high == doctest::Approx(std::exp(1.699 * 0.04 * std::sqrt(31.0 / 30))));  // Of the newest 30.
  const ErrorInterval slow = *ForecastIntervals(std::vector<ForecastError>(20, error("fc", "dp", 1.5)), "fc", 7).of(kTwo, "fp32");
  CHECK(slow.low == 1);
  CHECK(slow.high > 1.5);
  CHECK(slow.high < 1.65);
}

TEST_CASE("error intervals: one outlier among many does not widen them, errors of many runs do") {
  const auto high_of = [](const std::vector<double>& ratios) {
    std::vector<ForecastError> errors;
    for (const double ratio : ratios) errors.push_back(error("fc", "dp", ratio));
    return ForecastIntervals(errors, "fc", 7).of(kTwo, "fp32")->high;
  };
  for (const size_t count : {5, 9, 20, 30}) {
    CAPTURE(count);
    std::vector<double> ratios;
    for (size_t i = 0; i < count; ++i) ratios.push_back(std::vector<double>{0.95, 1.0, 1.05}[i % 3]);
    ratios[count / 2] = 1;
    const double calm = high_of(ratios);
    ratios[count / 2] = 8;  // A build that ran beside it.
    CHECK(high_of(ratios) < calm + 0.05);
    CHECK(high_of(ratios) > 1.05);
    for (size_t i = 0; i <= count / 3; ++i) ratios[i] = 2;  // Far more than a tenth.
    CHECK(high_of(ratios) > 1.9);
    CHECK(high_of(std::vector<double>(count, 2)) > 2);  // A forecast that is wrong each time.
  }
  CHECK(high_of({1, 1, 1, 8}) > 8);  // Of four nobody knows which is the odd one.
  // The same of other models: one of them that was measured badly once is one of many.
  std::vector<ForecastError> others;
  for (const char* model : {"a", "b", "c", "d", "e", "f"}) others.push_back(error(model, "dp", model[0] == 'f' ? 6 : 1));
  CHECK(ForecastIntervals(others, "fc", 7).of(kTwo, "fp32")->high < 1.2);
}

TEST_CASE("error intervals: the nearest runs count, and of other models each once") {
  std::vector<ForecastError> errors;
  for (const char* model : {"a", "b", "c"})
    for (int i = 0; i < 5; ++i) errors.push_back(error(model, "dp", i < 4 ? 3 : 1.1));  // The newest: 1.1.
  for (int i = 0; i < 3; ++i) errors.push_back(error("fc", "tp", 2));
  const ForecastIntervals known(errors, "fc", 7);
  CHECK(known.of({.tp = 2}, "fp32")->from == "3 runs of fc as tp");
  CHECK(known.of(kTwo, "fp32")->from == "3 runs of as many models as dp");
  CHECK(known.of(kTwo, "fp32")->high < 1.3);
  CHECK(known.of({.dp = 2, .zero = 1}, "fp32")->from == "4 runs of all models and layouts");
  CHECK(known.of(kTwo, "bf16")->from == "4 runs of all models and layouts");
  CHECK(known.of({.dp = 2, .precision = "bf16"}, "fp32")->from == "4 runs of all models and layouts");
  // Sizes of one family are other models.
  CHECK(ForecastIntervals(errors, "fc", 8).of({.tp = 2}, "fp32")->from == "4 runs of all models and layouts");
}

TEST_CASE("error intervals: of draws from a normal distribution the next is inside in 90 of 100 cases") {
  std::mt19937 random(1);
  std::normal_distribution<double> draw(0, 0.1);
  for (const int count : {3, 5, 20}) {
    int inside = 0;
    double width = 0;
    constexpr int kTrials = 4000;
    for (int trial = 0; trial < kTrials; ++trial) {
      std::vector<ForecastError> errors;
      for (int i = 0; i < count; ++i) errors.push_back(error("fc", "dp", std::exp(draw(random))));
      const ErrorInterval its = *ForecastIntervals(errors, "fc", 7).of(kTwo, "fp32");
      const double next = std::exp(draw(random));
      inside += next >= its.low && next <= its.high ? 1 : 0;
      width += std::log(its.high / its.low) / kTrials;
    }
    CAPTURE(count);
    CHECK(inside >= 0.885 * kTrials);
    CHECK(inside <= 0.95 * kTrials);
    if (count == 20) CHECK(width < 0.40);  // The default is log(1.25 / 0.8) = 0.446.
  }
}

}  // namespace
}  // namespace cohort
