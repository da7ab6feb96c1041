#include "cohort/plan/profile/calibration_file.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "cohort/base/error.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"
#include "cohort/plan/plan.h"
#include "tests/support/mutation.h"
#include "tests/support/text.h"

namespace cohort {
namespace {

namespace fs = std::filesystem;

ForecastError error(int64_t steps) {
  return {.model = "fc:hidden=8",
          .parameters = 123,
          .layout_class = "dp zero=1",
          .precision = "bf16",
          .workers = 2,
          .global_batch = 64,
          .steps = steps,
          .predicted_step_seconds = 0.5,
          .measured_step_seconds = 0.25,
          .predicted_peak_bytes = 1000,
          .measured_peak_bytes = 2000};
}

/// "" where it is let pass.
std::string said(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

void append_text(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::app | std::ios::binary) << text; }

TEST_CASE("calibration file: what is appended is read") {
  const TemporaryFolder folder;
  const std::string path = folder / "a/b/calibration.jsonl";
  CHECK(read_calibration(path).errors.empty());
  CHECK(append_calibration(path, error(10)).empty());
  CHECK(append_calibration(path, error(11)).empty());
  const KeptErrors kept = read_calibration(path);
  CHECK(kept.damaged.empty());
  REQUIRE(kept.errors.size() == 2);
  const ForecastError& its = kept.errors[1];
  CHECK(its.model == "fc:hidden=8");
  CHECK(its.parameters == 123);
  CHECK(its.layout_class == "dp zero=1");
  CHECK(its.precision == "bf16");
  CHECK(its.workers == 2);
  CHECK(its.global_batch == 64);
  CHECK(its.steps == 11);
  CHECK(its.predicted_step_seconds == 0.5);
  CHECK(its.measured_step_seconds == 0.25);
  CHECK(its.predicted_peak_bytes == 1000);
  CHECK(its.measured_peak_bytes == 2000);
}

TEST_CASE("calibration file: damaged lines are left out, and the first is named") {
  const TemporaryFolder folder;
  const std::string path = folder / "c.jsonl";
  append_calibration(path, error(10));
  append_text(path, "\n{\"model\":\"fc\"\n");
  append_calibration(path, error(10));
  for (
      const char* bad :
      {"[]", "7", R"({"model":"fc"})",
       R"({"model":"fc","parameters":1,"layout_class":"dp","precision":"fp32","steps":9,"predicted_step_seconds":0,"measured_step_seconds":1})",
       R"({"model":"fc","parameters":1,"layout_class":"dp","precision":"fp32","steps":9,"predicted_step_seconds":1,"measured_step_seconds":-1})",
       R"({"model":"fc","parameters":-1,"layout_class":"dp","precision":"fp32","steps":9,"predicted_step_seconds":1,"measured_step_seconds":1})"})
    append_text(path, std::string(bad) + "\n");
  append_text(path, std::string(5000, ' ') + "{}\n");
  append_text(path, R"({"model":"torn)");
  const KeptErrors kept = read_calibration(path);
  CHECK(kept.errors.size() == 2);
  CHECK(contains(kept.damaged, "9 lines are damaged and left out: line 3"));
  CHECK(!contains(kept.damaged, "\n"));
  append_calibration(path, error(12));  // After the torn one, not behind it.
  const KeptErrors more = read_calibration(path);
  CHECK(more.errors.size() == 3);
  CHECK(contains(more.damaged, "9 lines"));
}

TEST_CASE("calibration file: what is no file, or cannot be written, is said and nothing else happens") {
  const TemporaryFolder folder;
  CHECK(contains(read_calibration(folder / "").damaged, "nothing is read from it"));
  CHECK(!append_calibration(folder / "", error(10)).empty());
  const std::string pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(contains(read_calibration(pipe).damaged, "is not a regular file"));
  CHECK(!append_calibration(pipe, error(10)).empty());
  std::ofstream(folder / "file") << "x";
  CHECK(contains(append_calibration(folder / "file/below/c.jsonl", error(10)), "cannot make"));
  CHECK(append_calibration("", error(10)).empty());
}

TEST_CASE("calibration file: one that is named and of no use is refused") {
  const TemporaryFolder folder;
  const auto refused = [](const std::string& path) { return said([&] { check_calibration_option(path); }); };
  CHECK(refused("").empty());
  CHECK(refused("none").empty());
  CHECK(refused(folder / "new.jsonl").empty());
  CHECK(refused(folder / "a/b/new.jsonl").empty());
  CHECK(contains(refused(folder.path()), "--calibration " + folder.path() + ": "));
  append_text(folder / "garbage",
              "\x7f"
              "ELF\nwhat\n");
  CHECK(contains(refused(folder / "garbage"), "invalid calibration file: 2 lines are damaged"));
  append_calibration(folder / "garbage", error(10));  // One line is enough: others may have been cut.
  CHECK(refused(folder / "garbage").empty());
  CHECK(refused(folder / "garbage/below/c.jsonl").empty());  // It keeps nobody from training.
  CHECK(!fs::exists(folder / "new.jsonl"));
}

TEST_CASE("calibration file: it stays small, and the newest lines stay") {
  const TemporaryFolder folder;
  const std::string path = folder / "c.jsonl";
  append_calibration(path, error(1));
  const auto size_of_line = static_cast<size_t>(fs::file_size(path));
  std::ostringstream many;
  const std::string line = read_small_file(path, 10000);
  for (size_t i = 0; i < (size_t{4} << 20) / size_of_line; ++i) many << line;
  append_text(path, many.str());
  CHECK(read_calibration(path).errors.size() == 1000);
  CHECK(append_calibration(path, error(99)).empty());
  CHECK(fs::file_size(path) < 1001 * (size_of_line + 2));
  const KeptErrors kept = read_calibration(path);
  CHECK(kept.damaged.empty());
  CHECK(kept.errors.size() == 1000);
  CHECK(kept.errors.back().steps == 99);
}

TEST_CASE("calibration file: processes that append at once do not mix their lines") {
  const TemporaryFolder folder;
  const std::string path = folder / "c.jsonl";
  constexpr int kProcesses = 4, kLines = 100;
  for (int process = 0; process < kProcesses; ++process)
    if (const pid_t child = ::fork(); child == 0) {
      for (int i = 0; i < kLines; ++i) append_calibration(path, error(10 + process));
      ::_exit(0);
    }
  for (int process = 0; process < kProcesses; ++process) ::wait(nullptr);
  const KeptErrors kept = read_calibration(path);
  CHECK(kept.damaged.empty());
  CHECK(kept.errors.size() == kProcesses * kLines);
}

TEST_CASE("mutation: calibration files give what can be read of them, and nothing else happens") {
  const TemporaryFolder folder;
  const std::string path = folder / "c.jsonl";
  for (int i = 0; i < 3; ++i) append_calibration(path, error(10));
  const std::string whole = read_small_file(path, 10000);
  int damaged = 0;
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    std::ofstream(path, std::ios::trunc | std::ios::binary) << mutated(whole, seed);
    const KeptErrors kept = read_calibration(path);
    damaged += kept.damaged.empty() ? 0 : 1;
    for (const ForecastError& one : kept.errors) REQUIRE(one.predicted_step_seconds > 0);
    REQUIRE(!contains(kept.damaged, "\n"));
    const ForecastIntervals known(kept.errors, "fc:hidden=8", 123);
    if (const ErrorInterval* const its = known.of({.dp = 2, .zero = 1}, "bf16")) REQUIRE(its->low <= 1);
  }
  CHECK(damaged > 200);
}

TEST_CASE("calibration file: where it is") {
  const auto value = [](const char* name) { return std::getenv(name) ? std::string(std::getenv(name)) : std::string(); };
  const std::string cache = value("XDG_CACHE_HOME"), home = value("HOME");
  ::setenv("XDG_CACHE_HOME", "/x", 1);
  CHECK(calibration_file("") == "/x/cohort/calibration.jsonl");
  ::setenv("XDG_CACHE_HOME", "relative", 1);
  ::setenv("HOME", "/h", 1);
  CHECK(calibration_file("") == "/h/.cache/cohort/calibration.jsonl");
  ::unsetenv("HOME");
  CHECK(calibration_file("").empty());
  CHECK(calibration_file("none").empty());
  CHECK(calibration_file("f") == "f");
  ::setenv("HOME", home.c_str(), 1);
  cache.empty() ? ::unsetenv("XDG_CACHE_HOME") : ::setenv("XDG_CACHE_HOME", cache.c_str(), 1);
}

TEST_CASE("the forecast of a plan") {
  Json worker{{"ranks", Json::array({0, 1})}, {"forward_seconds", 0.2}, {"device", "core"}};
  worker["memory_bytes"]["total"] = 100;
  const Json plan{{"format", "cohort-plan"},         {"predicted_step_seconds", 0.5}, {"interval", Json::array({0.4, 0.6})},
                  {"interval_from", "default"},      {"peak_memory_bytes", 100},      {"runners_up", Json::array()},
                  {"workers", Json::array({worker})}};
  const ForecastRecord record = forecast_of_plan(plan, "p.json", "p.json").value();
  CHECK(record.predicted_step_seconds == 0.5);
  CHECK(record.interval == std::vector<double>{0.4, 0.6});
  CHECK(record.predicted_peak_memory_bytes == 100);
  CHECK(record.workers.at(0).ranks == std::vector<int64_t>{0, 1});
  CHECK(record.workers.at(0).memory_bytes->total == 100);
  CHECK(!forecast_of_plan(Json{{"layout", "dp=2"}}, "p", "p"));
  const auto refused = [&](const char* key, const Json& value) {
    Json bad = plan;
    bad[key] = value;
    return said([&] { forecast_of_plan(bad, "p.json", "p.json"); });
  };
  CHECK(contains(refused("predicted_step_seconds", -1), "p.json: 'predicted_step_seconds' is not a number above 0"));
  CHECK(contains(refused("interval", Json::array({1, 2, 3})), "has 3 numbers; expected two"));
  CHECK(contains(refused("workers", 7), "p.json: 'workers': expected a list"));
  CHECK(contains(refused("peak_memory_bytes", -5), "p.json: 'peak_memory_bytes': expected a whole number from 0 up, found -5"));
  CHECK(contains(refused("interval", Json::array({0.6, 0.4})), "'interval' is 0.6 to 0.4"));
  const Json uneven{
      {"shares", {0.75, 0.25}}, {"predicted_waste", 0.1}, {"predicted_equal_waste", 0.5}, {"predicted_equal_step_seconds", 1}};
  CHECK(refused("uneven", uneven).empty());
  CHECK(contains(refused("uneven", 7), "'uneven': expected a JSON object"));
  const auto bad_uneven = [&](const char* key, const Json& value) {
    Json bad = uneven;
    bad[key] = value;
    return refused("uneven", bad);
  };
  CHECK(contains(bad_uneven("shares", {0.75, 0.75}), "'shares' add up to 1.5"));
  CHECK(contains(bad_uneven("shares", {1.5, -0.5}), "'shares' has 1.5"));
  CHECK(contains(bad_uneven("predicted_equal_waste", 7), "'predicted_equal_waste' is 7; expected a share from 0 to 1"));
  CHECK(contains(bad_uneven("predicted_waste", -1), "'predicted_waste' is -1"));
  CHECK(contains(bad_uneven("predicted_equal_step_seconds", 0), "'predicted_equal_step_seconds' is 0; expected a number above 0"));
  CHECK(contains(bad_uneven("predicted_step_seconds", "x"), "'predicted_step_seconds': expected a number"));
}

}  // namespace
}  // namespace cohort
