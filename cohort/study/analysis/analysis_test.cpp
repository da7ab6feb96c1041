#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/study/analysis/fits.h"
#include "tests/support/made_up_study.h"

namespace cohort::study {
namespace {

using made_up::kGoal;
using made_up::make_study;

const Fit& fit_of(const Analysis& analysis, Law law) {
  for (const Fit& fit : analysis.fits)
    if (fit.law == law) return fit;
  throw Error(ErrorCode::kFailed, concat("no fit of ", name_of(law)));
}

bool holds(const std::optional<std::pair<double, double>>& interval, double value) {
  return interval && interval->first <= value && value <= interval->second;
}

TEST_CASE("analysis: a point that is not believed refuses the regimes only where they hang on it") {
  // Perfect to 64, flat from 256: at 1024 steps rise by a third, which moves neither end.
  const std::vector<StepsPoint> curve = {{16, 1600}, {32, 800}, {64, 410}, {128, 260}, {256, 200}, {512, 190}, {1024, 253}, {2048, 188}};
  const Analysis risen = analyse_table(curve);
  CHECK_FALSE(risen.regimes.refused);
  CHECK(risen.regimes.perfect_to == 64);
  CHECK(risen.regimes.flat_from == 256);
  REQUIRE(risen.regimes.flags.size() == 1);
  CHECK(risen.regimes.flags[0].find("at 1024") != std::string::npos);
  CHECK(risen.regimes.flags[0].find("regimes end at the same batch sizes with or without this point") != std::string::npos);
  // At the end of the curve nothing bounds what a better search would find there.
  const Analysis cut = analyse_table(std::span(curve).first(7));
  CHECK(cut.regimes.refused);
  REQUIRE(cut.regimes.flags.size() == 1);
  CHECK(cut.regimes.flags[0].find("at batch size 1024") != std::string::npos);
  // The same at 256 hides where it begins to be flat.
  std::vector<StepsPoint> other = curve;
  other[4].steps = 330, other[6].steps = 189;
  const Analysis hidden = analyse_table(other);
  CHECK(hidden.regimes.refused);
  CHECK_FALSE(hidden.regimes.flat_from);
  REQUIRE(hidden.regimes.flags.size() == 1);
  CAPTURE(hidden.regimes.flags[0]);
  CHECK(hidden.regimes.flags[0].find("at batch size 256") != std::string::npos);
  CHECK(hidden.regimes.flags[0].find("no further gain from 512, and otherwise it may be") != std::string::npos);
  // Too many steps at 32, between points that say the same of both ends; and at 16, from which perfect scaling is counted.
  const std::vector<StepsPoint> fallen = {{16, 1600}, {32, 1000}, {64, 385}, {128, 260}, {256, 200}, {512, 190}, {1024, 188}};
  const Analysis between = analyse_table(fallen);
  CHECK_FALSE(between.regimes.refused);
  CHECK(between.regimes.perfect_to == 64);
  REQUIRE(between.regimes.flags.size() == 1);
  CHECK(between.regimes.flags[0].find("regimes end at the same batch sizes with or without this point") != std::string::npos);
  other = fallen;
  other[0].steps = 2080, other[1].steps = 800, other[2].steps = 400, other[3].steps = 300;
  const Analysis first = analyse_table(other);
  CHECK(first.regimes.refused);
  REQUIRE(first.regimes.flags.size() == 1);
  CAPTURE(first.regimes.flags[0]);
  CHECK(first.regimes.flags[0].find("as measured there is perfect scaling to 128") != std::string::npos);
  CHECK(first.regimes.flags[0].find("otherwise it may be perfect scaling to 64") != std::string::npos);
}

TEST_CASE("analysis: steps, fits and regimes of a study, with intervals") {
  const Analysis analysis = analyse(make_study(400, 100, 1, 40, 3), kGoal, {.num_resamples = 200});
  REQUIRE(analysis.steps.size() == 11);
  REQUIRE(analysis.fits.size() == 3);
  CHECK_FALSE(analysis.regimes.refused);
  CAPTURE(analysis.regimes.flags.size());
  for (const Fit& fit : analysis.fits) {
    CAPTURE(name_of(fit.law));
    REQUIRE(fit.interval.has_value());
    CHECK(holds(fit.interval, fit.critical_batch_size));
    CHECK(fit.interval->first < fit.interval->second);
    REQUIRE(fit.parameter_intervals.size() == fit.parameters.size());
    for (size_t i = 0; i < fit.parameters.size(); ++i) CHECK(holds(fit.parameter_intervals[i], fit.parameters[i].second));
  }
  CHECK(fit_of(analysis, Law::kHyperbola).critical_batch_size == doctest::Approx(100).epsilon(0.2));
  // S = 400 (1 + 100 / B): B S is 1.25 x that at 4 near 30; S within 1.2 x of the least from 512 on.
  REQUIRE(analysis.regimes.perfect_to.has_value());
  CHECK(holds(analysis.regimes.perfect_interval, *analysis.regimes.perfect_to));
  CHECK(holds(analysis.regimes.perfect_interval, 16));
  REQUIRE(analysis.regimes.flat_from.has_value());
  CHECK(holds(analysis.regimes.flat_interval, 512));
}

TEST_CASE("analysis: the same again with the same seed, another with another") {
  const StudyData study = make_study(400, 100, 1, 20, 5);
  const auto interval = [&](uint64_t seed) {
    return *fit_of(analyse(study, kGoal, {.num_resamples = 60, .seed = seed}), Law::kHyperbola).interval;
  };
  CHECK(interval(1) == interval(1));
  CHECK(interval(1) != interval(2));
}

TEST_CASE("analysis: intervals hold the truth about as often as they say, and are no wider than of use") {
  // 95 % of 40 are 38; fewer than 33 has odds of 1 in 200 even at 90 %.
  constexpr int kStudies = 40, kLeast = 33;
  int num_hyperbola = 0, num_log_linear = 0, num_perfect = 0, num_flat = 0, num_knee = 0, num_sharp_flat = 0;
  double width = 0;
  for (uint64_t seed = 0; seed < kStudies; ++seed) {
    const Analysis smooth = analyse(make_study(400, 100, 1, 40, seed), kGoal, {.reference_batch = 4, .num_resamples = 40});
    const Fit& hyperbola = fit_of(smooth, Law::kHyperbola);
    num_hyperbola += holds(hyperbola.interval, 100);
    num_log_linear += holds(fit_of(smooth, Law::kLogLinear).interval, 1.2 * 4 + 0.2 * 100);
    num_perfect += smooth.regimes.refused || holds(smooth.regimes.perfect_interval, 16);
    num_flat += smooth.regimes.refused || holds(smooth.regimes.flat_interval, 512);
    width += std::log(hyperbola.interval->second / hyperbola.interval->first) / kStudies;
  }
  for (uint64_t seed = 0; seed < kStudies; ++seed) {
    const Analysis sharp = analyse(make_study(400, 100, 3, 20, 1000 + seed), kGoal, {.num_resamples = 40});
    num_knee += holds(fit_of(sharp, Law::kKnee).interval, 100);
    num_sharp_flat += sharp.regimes.refused || holds(sharp.regimes.flat_interval, 128);
  }
  MESSAGE("of ", kStudies, ": hyperbola ", num_hyperbola, ", log-linear ", num_log_linear, ", knee ", num_knee, ", perfect to ",
          num_perfect, ", flat from ", num_flat, " and ", num_sharp_flat, "; mean width of the hyperbola's: ", std::exp(width), " times");
  for (const int count : {num_hyperbola, num_log_linear, num_perfect, num_flat, num_knee, num_sharp_flat}) CHECK(count >= kLeast);
  CHECK(std::exp(width) < 1.6);
}

TEST_CASE("analysis: where the data do not bound it, the interval is open") {
  StudyData study = make_study(10, 40000, 1, 30, 4);  // 1 / B from 4 to 4096.
  study.batches.resize(6);
  const Analysis analysis = analyse(study, kGoal, {.num_resamples = 100});
  REQUIRE_FALSE(analysis.regimes.refused);
  const Fit& fit = fit_of(analysis, Law::kHyperbola);
  REQUIRE(fit.interval.has_value());
  CHECK(std::isinf(fit.interval->second));
  CHECK(fit.interval->first > 100);
  CHECK_FALSE(fit.note.empty());
  CHECK(*analysis.regimes.perfect_to == 128);  // Not left.
  CHECK_FALSE(analysis.regimes.flat_from.has_value());
  REQUIRE(analysis.regimes.flat_interval.has_value());
  CHECK(std::isinf(analysis.regimes.flat_interval->first));
}

TEST_CASE("analysis: batch sizes where nearly no trial gets there leave no interval, and no regime") {
  StudyData study = make_study(400, 100, 1, 20, 8);
  study.batches.resize(4);
  for (BatchStudy& batch : study.batches)
    for (Trial& trial : batch.trials)
      if (trial.id != 10) trial.measurements.back().values[kValError] = 0.5;
  const Analysis analysis = analyse(study, kGoal, {.num_resamples = 100});
  CHECK(analysis.steps[0].num_reached == 1);
  REQUIRE(analysis.fits.size() == 3);
  CHECK_FALSE(fit_of(analysis, Law::kKnee).interval.has_value());
  CHECK(fit_of(analysis, Law::kKnee).note.find("too few batch sizes") != std::string::npos);
  CHECK(analysis.regimes.refused);
  CHECK_FALSE(analysis.regimes.perfect_to.has_value());
  CHECK_FALSE(analysis.regimes.perfect_interval.has_value());
  // Nothing at all.
  const Analysis none = analyse(study, {.metric = kValError, .value = 0.001}, {.num_resamples = 10});
  CHECK(none.fits.empty());
  CHECK(none.regimes.refused);
  CHECK(analyse({}, kGoal, {.num_resamples = 10}).regimes.refused);
}

TEST_CASE("analysis of a table: no trials, no intervals") {
  const std::vector<StepsPoint> table = {{64, 46000},  {128, 23000}, {256, 13282}, {512, 7000},  {1024, 3840},
                                         {2048, 2528}, {4096, 1917}, {8192, 1600}, {16384, 1600}};
  const Analysis analysis = analyse_table(table, 256);
  CHECK(fit_of(analysis, Law::kLogLinear).critical_batch_size == doctest::Approx(745.3).epsilon(1e-4));
  CHECK_FALSE(fit_of(analysis, Law::kLogLinear).interval.has_value());
  CHECK(analysis.regimes.perfect_to == 512);
  CHECK(analysis.regimes.flat_from == 4096);
  CHECK(analysis.regimes.flags.empty());
}

}  // namespace
}  // namespace cohort::study
