#include "cohort/report/noise_run.h"

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"
#include "cohort/report/sections.h"

namespace cohort::report {
namespace {

/// |G|^2 = 2 and tr = 8 x step / 100 with a disturbance that averages out over two steps.
std::string noise_line(int step, double running) {
  const double small = 8, large = 32, trace = 8.0 * step / 100, wobble = step % 4 == 0 ? 0.1 : -0.1;
  return concat(R"({"event":"noise_scale","step":)", step, R"(,"small_batch":8.0,"large_batch":32.0,"small_squared":)",
                2 + wobble + trace / small, R"(,"large_squared":)", 2 + wobble + trace / large, R"(,"gradient_squared":2.0,"trace":1.0,)",
                R"("noise_scale":)", running > 0 ? concat(running) : "null", "}\n");
}

std::string run_text(int last) {
  std::string text = "{\"event\":\"start\",\"world_size\":2,\"layout\":{\"dp\":2},\"parameters\":10,\"train_samples\":100}\n";
  for (int step = 1; step <= last; ++step) {
    text +=
        concat(R"({"event":"step","step":)", step, R"(,"loss":)", 100.0 / step, R"(,"step_seconds":0.01,"samples_per_second":3200})", "\n");
    if (step % 2 == 0) text += noise_line(step, step > 10 ? step / 25.0 : 0);
    if (step % 50 == 0)
      text += concat(R"({"event":"eval","step":)", step, R"(,"val_loss":)", 200.0 / step, R"(,"val_error":)", 10.0 / step, "}\n");
  }
  return text;
}

TEST_CASE("noise of a run: stretches with their losses, and the note of a study") {
  const TemporaryFolder folder;
  std::ofstream(folder / "metrics.jsonl") << run_text(400);
  const std::vector<NoisePoint> points = read_noise_run(folder.path());
  REQUIRE(points.size() >= 3);
  int64_t total = 0;
  for (const NoisePoint& point : points) {
    const study::NoiseWindow& w = point.window;
    total += w.num_measurements;
    const double middle = 0.5 * static_cast<double>(w.first_step + w.last_step);
    CHECK(w.mean.gradient_squared == doctest::Approx(2).epsilon(0.02));
    CHECK(w.mean.trace == doctest::Approx(0.08 * middle));
    CHECK(w.noise_scale == doctest::Approx(0.04 * middle).epsilon(0.02));
    CHECK(w.batch == doctest::Approx(32));
    double sum = 0;
    for (int64_t step = w.first_step; step <= w.last_step; ++step) sum += 100.0 / static_cast<double>(step);
    CHECK(point.loss == doctest::Approx(sum / static_cast<double>(w.last_step - w.first_step + 1)));
  }
  CHECK(total == 200);
  CHECK(points.back().val_loss == doctest::Approx(0.5));
  CHECK(points.back().val_error == doctest::Approx(0.025));
  const Json note = Json::parse(noise_note(points));
  REQUIRE(note.size() == points.size());
  CHECK(note[0]["step"] == points[0].window.last_step);
  CHECK(note[0]["noise_scale"].get<double>() == doctest::Approx(points[0].window.noise_scale));
  CHECK(note[0]["val_loss"].is_null() == std::isnan(points[0].val_loss));
  CHECK(note.back()["batch"] == 32);
}

TEST_CASE("noise of a run: a resume takes back what came after it; a run without measurements says how to get them") {
  const TemporaryFolder folder;
  std::ofstream(folder / "metrics.jsonl") << run_text(100) + "{\"event\":\"resume\",\"step\":50}\n" + noise_line(52, 1);
  const RunRecord run = read_run(folder.path());
  REQUIRE(run.noise.size() == 26);
  CHECK(run.noise.back().step == 52);
  CHECK(run.noise[1].step == 4);
  CHECK(std::isnan(run.noise[1].noise_scale));
  const TemporaryFolder bare;
  std::ofstream(bare / "metrics.jsonl") << "{\"event\":\"start\",\"world_size\":1,\"layout\":{},\"parameters\":1,\"train_samples\":1}\n";
  CHECK_THROWS_WITH_AS(read_noise_run(bare.path()), doctest::Contains("--noise-scale"), Error);
  CHECK(noise_section(read_run(bare.path())).empty());
}

TEST_CASE("noise of a run: the report shows the curve and says that it is an indication") {
  const TemporaryFolder folder;
  std::ofstream(folder / "metrics.jsonl") << run_text(400);
  const std::string section = noise_section(read_run(folder.path()));
  CHECK(section.find("only as an indication") != std::string::npos);
  CHECK(section.find("<svg") != std::string::npos);
  CHECK(section.find(" to 400<") != std::string::npos);
  CHECK(report_page(read_run(folder.path())).find("Gradient noise scale") != std::string::npos);
}

}  // namespace
}  // namespace cohort::report
