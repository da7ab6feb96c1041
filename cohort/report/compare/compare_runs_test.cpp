#include "cohort/report/compare/compare_runs.h"

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"

namespace cohort::report {
namespace {

/// Lines every 10 steps of 32 samples, which take `step_seconds`; evaluations every 20.
RunRecord run_of(double step_seconds, const std::vector<double>& val_losses) {
  RunRecord run;
  run.start = StartRecord{.model = "fc", .data = "made up", .global_batch = 32};
  for (size_t i = 0; i < val_losses.size(); ++i) {
    const auto step = static_cast<int64_t>(20 * (i + 1));
    for (const int64_t line : {step - 10, step})
      run.steps.push_back({.step = line, .loss = val_losses[i], .step_seconds = step_seconds, .samples_per_second = 32 / step_seconds});
    run.evals.push_back({.step = step, .val_loss = val_losses[i], .val_error = 0.1});
  }
  return run;
}

TEST_CASE("comparison: what all reached, and when each did") {
  const std::vector<RunRecord> runs = {run_of(0.1, {2, 1, 0.5}), run_of(0.2, {0.9, 0.8, 0.95})};
  CHECK(common_level(runs) == 0.8);
  CHECK(first_reaching(runs[0], 0.8).samples == 60 * 32);
  CHECK(first_reaching(runs[0], 0.8).seconds == doctest::Approx(6));
  CHECK(first_reaching(runs[1], 0.8).samples == 40 * 32);
  CHECK(first_reaching(runs[1], 0.8).seconds == doctest::Approx(8));
  CHECK(std::isnan(first_reaching(runs[1], 0.1).samples));
  RunRecord grows = runs[0];
  grows.start->batch_schedule = "30:2,50:4";
  CHECK(first_reaching(grows, 2).samples == 20 * 32);
  CHECK(first_reaching(grows, 0.8).samples == (30 + 2 * 20 + 4 * 10) * 32);
  CHECK(std::isnan(common_level({run_of(0.1, {}), run_of(0.1, {1})})));
}

TEST_CASE("comparison: seconds of the virtual clock where a run had one") {
  RunRecord run = run_of(0.1, {2, 1});
  run.async = AsyncRecord{.sync = "async", .virtual_seconds = 50};
  for (StepRecord& step : run.steps) step.virtual_seconds = 1.25 * static_cast<double>(step.step);
  for (EvalRecord& eval : run.evals) eval.virtual_seconds = 1.25 * static_cast<double>(eval.step);
  CHECK(first_reaching(run, 1).seconds == 50);
  const std::string page = comparison_page({run, run_of(0.1, {2, 1})}, {"a<b", "c"});
  CHECK(page.find("a&lt;b") != std::string::npos);
  CHECK(page.find("a<b") == std::string::npos);
  CHECK(page.find("seconds on the virtual clock") != std::string::npos);
  CHECK(page.find("seconds of training steps") != std::string::npos);
}

TEST_CASE("comparison: a page of runs that have nothing, and of what a file makes up") {
  CHECK_FALSE(comparison_page({RunRecord(), RunRecord()}, {"x", "y"}).empty());
  RunRecord odd = run_of(0.1, {NAN, INFINITY, -3});
  odd.start->global_batch.reset();
  odd.async = AsyncRecord{};
  CHECK_FALSE(comparison_page({odd, run_of(NAN, {1})}, {"x", "y"}).empty());
}

TEST_CASE("comparison: runs are 2 to 10, none twice, all readable, before anything is written") {
  const TemporaryFolder folder;
  const std::string out = folder / "out.html";
  std::vector<std::string> many;
  for (int i = 0; i < 11; ++i) many.push_back(folder / std::to_string(i));
  CHECK_THROWS_WITH_AS(write_comparison({folder / "0"}, out), "report: 1 runs side by side; expected 2 to 10", Error);
  CHECK_THROWS_AS(write_comparison(many, out), Error);
  CHECK_THROWS_AS(write_comparison({folder / "0", (folder / "0") + "/"}, out), Error);
  CHECK_THROWS_AS(write_comparison({folder / "0", folder / "1"}, out), Error);
  CHECK_FALSE(std::ifstream(out).good());
}

}  // namespace
}  // namespace cohort::report
