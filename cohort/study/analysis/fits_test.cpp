#include "cohort/study/analysis/fits.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cmath>
#include <limits>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/random.h"

namespace cohort::study {
namespace {

// Zhang et al. 2024, 85M parameters: published steps, and what their fit gives.
const std::vector<StepsPoint> kZhang = {{64, 46000},  {128, 23000}, {256, 13282}, {512, 7000},  {1024, 3840},
                                        {2048, 2528}, {4096, 1917}, {8192, 1600}, {16384, 1600}};

double law_at(Law law, double min_steps, double critical, double exponent, double batch) {
  return law == Law::kKnee ? min_steps * std::pow(1 + std::pow(critical / batch, exponent), 1 / exponent)
                           : min_steps * (1 + critical / batch);
}

std::vector<StepsPoint> points_on(Law law, double min_steps, double critical, double exponent, double noise = 0, uint64_t seed = 0) {
  std::vector<StepsPoint> points;
  for (int power = 2; power <= 13; ++power) {
    // Sum of 12 uniform numbers: normal enough.
    double normal = -6;
    for (uint64_t i = 0; i < 12; ++i) normal += unit_interval(random_bits(seed, power, i));
    const double batch = std::exp2(power);
    points.push_back({batch, law_at(law, min_steps, critical, exponent, batch) * std::exp(noise * normal)});
  }
  return points;
}

double value_of(const Fit& fit, const std::string& name) {
  for (const auto& [key, value] : fit.parameters)
    if (key == name) return value;
  FAIL("no parameter ", name);
  return 0;
}

TEST_CASE("log-linear: every digit of the published 85M fit") {
  const Fit fit = fit_law(Law::kLogLinear, kZhang, 256);
  CHECK(std::abs(value_of(fit, "a") - 1293.83) < 0.005);
  CHECK(std::abs(value_of(fit, "b") - 2834258) < 0.5);
  CHECK(std::abs(fit.critical_batch_size - 745.3) < 0.05);
  CHECK(fit.residuals_log.size() == 9);
  double squares = 0;
  for (size_t i = 0; i < kZhang.size(); ++i) {
    CHECK(fit.residuals_log[i] ==
          doctest::Approx(std::log(kZhang[i].steps / (value_of(fit, "a") + value_of(fit, "b") / kZhang[i].batch_size))));
    squares += fit.residuals_log[i] * fit.residuals_log[i];
  }
  CHECK(fit.rms_log == doctest::Approx(std::sqrt(squares / 9)));
  // The definition: 20 % above linear scaling from the reference batch.
  const double critical = fit.critical_batch_size;
  CHECK(fit.steps_at(critical) == doctest::Approx(1.2 * fit.steps_at(256) * 256 / critical));
  CHECK(fit_law(Law::kLogLinear, kZhang, 0).critical_batch_size == doctest::Approx(critical - 1.2 * (256 - 64)));
  // The same curve as the hyperbola's.
  const Fit hyperbola = fit_law(Law::kHyperbola, kZhang, 256);
  CHECK(value_of(hyperbola, "Smin") == doctest::Approx(value_of(fit, "a")));
  CHECK(value_of(hyperbola, "Bc") == doctest::Approx(2834258 / 1293.83).epsilon(1e-5));
  CHECK(hyperbola.note.empty());
}

TEST_CASE("each law is found again on its own points, over many sizes") {
  for (const double critical : {7.0, 100.0, 5000.0})
    for (const double exponent : {0.3, 0.65, 1.0, 3.0, 8.0}) {
      CAPTURE(critical);
      CAPTURE(exponent);
      const Fit knee = fit_law(Law::kKnee, points_on(Law::kKnee, 400, critical, exponent), 0);
      CHECK(value_of(knee, "Smin") == doctest::Approx(400).epsilon(2e-3));
      CHECK(value_of(knee, "Bc") == doctest::Approx(critical).epsilon(2e-3));
      CHECK(value_of(knee, "e") == doctest::Approx(exponent).epsilon(2e-3));
      CHECK(knee.rms_log < 1e-5);
      CHECK(knee.steps_at(64) == doctest::Approx(law_at(Law::kKnee, 400, critical, exponent, 64)).epsilon(1e-4));
      CHECK(knee.min_examples == doctest::Approx(400 * critical).epsilon(4e-3));
      const Fit hyperbola = fit_law(Law::kHyperbola, points_on(Law::kHyperbola, 400, critical, 1), 0);
      CHECK(value_of(hyperbola, "Smin") == doctest::Approx(400).epsilon(1e-6));
      CHECK(value_of(hyperbola, "Bc") == doctest::Approx(critical).epsilon(1e-6));
    }
}

TEST_CASE("no curve of a dense scan is better than the one found") {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const bool sharp = seed % 2 == 0;
    const std::vector<StepsPoint> points = points_on(Law::kKnee, 300, sharp ? 60 : 900, sharp ? 4 : 0.6, 0.3, seed);
    const Fit knee = fit_law(Law::kKnee, points, 0), hyperbola = fit_law(Law::kHyperbola, points, 0);
    double least_knee = 1e9, least_hyperbola = 1e9;
    for (double log_critical = -10; log_critical < 22; log_critical += 0.04)
      for (double exponent = 0.2; exponent <= 10; exponent *= 1.1) {
        const bool is_hyperbola = exponent == 0.2;  // Once for each critical batch size.
        for (const double e : {exponent, is_hyperbola ? 1.0 : exponent}) {
          double sum = 0, squares = 0;
          for (const StepsPoint& point : points) {
            const double residual = std::log(point.steps / law_at(Law::kKnee, 1, std::exp(log_critical), e, point.batch_size));
            sum += residual;
            squares += residual * residual;
          }
          const double rms = std::sqrt(std::max(0.0, squares - sum * sum / 12) / 12);
          if (e == 1.0) least_hyperbola = std::min(least_hyperbola, rms);
          least_knee = std::min(least_knee, rms);
        }
      }
    CAPTURE(seed);
    CHECK(knee.rms_log <= least_knee * (1 + 1e-9));
    CHECK(hyperbola.rms_log <= least_hyperbola * (1 + 1e-9));
    CHECK(knee.rms_log <= hyperbola.rms_log * (1 + 1e-9));  // e = 1 is one of its curves.
  }
}

TEST_CASE("data that do not bound the law get a sentence, not a number") {
  std::vector<StepsPoint> perfect, flat;
  for (const double batch : {8.0, 16.0, 32.0, 64.0, 128.0}) {
    perfect.push_back({batch, 64000 / batch});
    flat.push_back({batch, 500});
  }
  for (const Law law : {Law::kHyperbola, Law::kKnee, Law::kLogLinear}) {
    CAPTURE(name_of(law));
    const Fit of_perfect = fit_law(law, perfect, 8), of_flat = fit_law(law, flat, 8);
    CHECK(std::isinf(of_perfect.critical_batch_size));
    CHECK(of_perfect.min_examples == doctest::Approx(64000));
    CHECK(of_perfect.steps_at(1000) == doctest::Approx(64));
    CHECK(of_perfect.rms_log < 1e-12);
    CHECK(of_perfect.note.find("do not bound") != std::string::npos);
    CHECK(of_perfect.parameters[0].second == 0);
    CHECK(of_flat.critical_batch_size == doctest::Approx(law == Law::kLogLinear ? 1.2 * 8 : 0));
    CHECK(of_flat.steps_at(3) == doctest::Approx(500));
    CHECK(of_flat.note.find("do not fall") != std::string::npos);
  }
  // Steps that rise have no better curve than a flat one.
  for (StepsPoint& point : flat) point.steps *= point.batch_size;
  CHECK(fit_law(Law::kHyperbola, flat, 8).critical_batch_size == 0);
  // Falling faster than 1 / B: none better than 1 / B.
  for (StepsPoint& point : perfect) point.steps /= point.batch_size;
  CHECK(std::isinf(fit_law(Law::kKnee, perfect, 8).critical_batch_size));
  // A corner: sharper than the range of e.
  const Fit corner = fit_law(Law::kKnee, std::vector<StepsPoint>{{1, 800}, {2, 400}, {4, 200}, {8, 100}, {16, 100}, {32, 100}}, 1);
  CHECK(value_of(corner, "e") == doctest::Approx(10));
  CHECK(corner.note.find("sharper") != std::string::npos);
  CHECK(value_of(corner, "Bc") == doctest::Approx(8).epsilon(0.02));
  CHECK(fit_law(Law::kHyperbola, points_on(Law::kHyperbola, 50, 1e5, 1), 0).note.find("extrapolated") != std::string::npos);
  // Log-linear has no Bc: its note is about the 20 % critical batch size, which may be measured where b / a is not.
  const auto note = [](double ratio, double reference) {
    return fit_law(Law::kLogLinear, points_on(Law::kLogLinear, 50, ratio, 1), reference).note;
  };
  CHECK(note(20'000, 4) == "");  // 0.2 x 20,000 + 5 is measured.
  CHECK(note(1e5, 4) == "the 20 % critical batch size lies above the largest batch size measured: extrapolated");
  CHECK(note(100, 8000) == "the 20 % critical batch size lies above the largest batch size measured: extrapolated");
  CHECK(note(0, 64).find("do not fall from the smallest batch size, 4, on: b is 0") != std::string::npos);
}

TEST_CASE("points at one batch size, and awkward units, do not matter") {
  std::vector<StepsPoint> points = kZhang;
  const double critical = fit_law(Law::kHyperbola, points, 0).critical_batch_size;
  points.insert(points.end(), kZhang.rbegin(), kZhang.rend());  // Everything twice, in another order.
  CHECK(fit_law(Law::kHyperbola, points, 0).critical_batch_size == doctest::Approx(critical));
  for (StepsPoint& point : points) point = {point.batch_size * 1e9, point.steps * 1e-6};  // Tokens; millions of steps.
  CHECK(fit_law(Law::kHyperbola, points, 0).critical_batch_size == doctest::Approx(critical * 1e9));
}

TEST_CASE("what cannot be fitted is refused") {
  const std::vector<StepsPoint> three(kZhang.begin(), kZhang.begin() + 3);
  CHECK_NOTHROW(fit_law(Law::kHyperbola, three, 0));
  CHECK_THROWS_WITH_AS(fit_law(Law::kKnee, three, 0), doctest::Contains("needs at least 4 batch sizes"), Error);
  CHECK_THROWS_AS(fit_law(Law::kHyperbola, std::vector<StepsPoint>{{8, 100}, {8, 90}, {8, 80}, {16, 60}}, 0), Error);
  CHECK_THROWS_WITH_AS(fit_law(Law::kHyperbola, std::vector<StepsPoint>{{8, 100}, {16, 0}, {32, 5}}, 0), doctest::Contains("positive"),
                       Error);
  CHECK_THROWS_AS(fit_law(Law::kHyperbola, std::vector<StepsPoint>{{8, 100}, {16, 50}, {32, NAN}}, 0), Error);
  CHECK_THROWS_WITH_AS(parse_law("parabola"), doctest::Contains("log-linear"), Error);
  CHECK(parse_law("knee") == Law::kKnee);
}

TEST_CASE("regimes: the rules on published shapes") {
  Regimes regimes = find_regimes(kZhang);
  CHECK(regimes.perfect_to == 512);  // 3.584e6 <= 1.25 x 2.944e6.
  CHECK(regimes.flat_from == 4096);  // 1917 <= 1.2 x 1600.
  regimes = find_regimes(std::vector<StepsPoint>{{8, 11750}, {32, 2800}, {128, 920}, {512, 500}, {2048, 410}});
  CHECK(regimes.perfect_to == 32);             // 128 just misses: 117,760 > 1.25 x 94,000.
  CHECK_FALSE(regimes.flat_from.has_value());  // 500 > 1.2 x 410: still falling at the end.
  regimes = find_regimes(std::vector<StepsPoint>{{8, 800}, {16, 400}, {32, 200}});
  CHECK(regimes.perfect_to == 32);
  CHECK_FALSE(regimes.flat_from.has_value());
  regimes = find_regimes(std::vector<StepsPoint>{{32, 100}, {8, 100}, {16, 100}, {16, 300}});  // Any order; the least of several rows.
  CHECK(regimes.perfect_to == 8);
  CHECK(regimes.flat_from == 8);
  CHECK_FALSE(find_regimes({}).perfect_to.has_value());
}

TEST_CASE("tables of steps") {
  const TemporaryFolder folder;
  const std::string path = folder / "table.csv";
  const auto read = [&](const std::string& text) {
    write_file_atomically(path, text);
    return read_steps_table(path);
  };
  const std::vector<StepsPoint> points = read("\xEF\xBB\xBFnote,batch_size, steps\r\nx,64,23000.5\r\n\n,8,4.6e4\ny,128,\n");
  REQUIRE(points.size() == 2);
  CHECK(points[0].batch_size == 8);
  CHECK(points[0].steps == 46000);
  CHECK(points[1].steps == 23000.5);
  CHECK_THROWS_WITH_AS(read("batch_size,steps\n8,100\n16,x\n"), doctest::Contains("table.csv:3: steps is 'x'"), Error);
  CHECK_THROWS_WITH_AS(read("batch_size,steps\n-8,100\n"), doctest::Contains(":2: batch_size is '-8'"), Error);
  CHECK_THROWS_WITH_AS(read("batch_size,steps\n8,0\n"), doctest::Contains("positive"), Error);
  CHECK_THROWS_WITH_AS(read("batch_size,steps\n8\n"), doctest::Contains("1 fields"), Error);
  CHECK_THROWS_WITH_AS(read("batch,steps\n8,100\n"), doctest::Contains("no column 'batch_size'"), Error);
  CHECK_THROWS_WITH_AS(read(""), doctest::Contains("has no rows"), Error);
  CHECK_THROWS_AS(read_steps_table(folder / "none.csv"), Error);
  // As R's write.csv writes it, with row names; all that quotes may hold; line numbers count line ends inside of them.
  const std::vector<StepsPoint> quoted =
      read("\"\",\"batch_size\",\"steps\"\r\n\"1\",64,23000\r\n\"two,\r\nlines \"\"and quotes\"\"\", \"8\" ,\"4.6e4\"\r\n\"3\",16,NA\r\n");
  REQUIRE(quoted.size() == 2);
  CHECK(quoted[0].batch_size == 8);
  CHECK(quoted[0].steps == 46000);
  CHECK(quoted[1].steps == 23000);
  CHECK(read("batch_size,steps\n8,\"\"\n").empty());
  CHECK_THROWS_WITH_AS(read("\"batch_size\",\"steps\"\n\"8\",100\n\"1\n6\",\"9\"\n"), doctest::Contains(":3: batch_size is '1"), Error);
  CHECK_THROWS_WITH_AS(read("\"a\nb\",batch_size,steps\n0,8,x\n"), doctest::Contains(":3: steps is 'x'"), Error);
  CHECK_THROWS_WITH_AS(read("batch_size,steps\n8,\"100\n"), doctest::Contains(":2: a quote that is opened in this row is not closed"),
                       Error);
  CHECK_THROWS_WITH_AS(read("batch_size,steps\n\"8\"0,100\n"), doctest::Contains(":2: field 1 goes on after its closing quote"), Error);
  CHECK_THROWS_AS(read_steps_table(folder.path()), Error);
  // Neither has an end.
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  for (const std::string& endless : {folder / "pipe", std::string("/dev/zero")})
    CHECK_THROWS_WITH_AS(read_steps_table(endless), doctest::Contains("not a regular file"), Error);
}

}  // namespace
}  // namespace cohort::study
