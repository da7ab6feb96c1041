#include "cohort/report/run_reader.h"

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <string>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "tests/support/text.h"

namespace cohort::report {
namespace {

struct Folder {
  TemporaryFolder root;
  RunRecord read(const std::string& metrics, const std::string& config = "") const {
    std::ofstream(root / "metrics.jsonl", std::ios::binary) << metrics;
    if (!config.empty()) std::ofstream(root / "config.toml", std::ios::binary) << config;
    return read_run(root.path());
  }
  std::string error(const std::string& metrics, const std::string& config = "") const {
    try {
      read(metrics, config);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kBadInput);
      CHECK(std::string(error.what()).find('\n') == std::string::npos);
      return error.what();
    }
    return "no error";
  }
};

const char kStart[] =
    R"({"event":"start","world_size":2,"layout":{"dp":2,"pp":1,"sync":"step","zero":1},"tensor_parallel":{"sentence":"tp=2 divides 5 of 6 layers"},"parameters":7,"train_samples":60000})"
    "\n";

std::string step(int number, const std::string& more = "") {
  return R"({"event":"step","step":)" + std::to_string(number) + R"(,"loss":)" + std::to_string(1.0 / number) + more + "}\n";
}

TEST_CASE("read_run: every event") {
  Folder folder;
  const RunRecord run = folder.read(
      std::string(kStart) + step(1, R"(,"step_seconds":0.5,"samples_per_second":256,"data_seconds":0.1,"gradient_norm":null)") + step(2) +
          R"({"event":"eval","step":2,"val_loss":0.4,"val_error":0.1})"
          "\n"
          R"({"event":"something_new","x":[{}]})"
          "\n\n"
          R"({"event":"checkpoint","step":2,"path":"checkpoints/step-000000002"})"
          "\n"
          R"({"event":"ranks","ranks":[{"rank":1,"host":"h","pid":12,"samples":256,"compute_seconds":0.3,"peak_memory_bytes":5}]})"
          "\n"
          R"({"event":"confusion","step":2,"classes":["a","b"],"counts":[[1,2],[3,4]]})"
          "\n"
          R"({"event":"sample","step":2,"prompt":"p","text":"q\u00e9"})"
          "\n"
          R"({"event":"done","step":2,"loss":null,"val_loss":0.4,"val_error":0.1,"seconds":9,"predicted_step_seconds":null,"measured_step_seconds":0.5,"peak_memory_bytes":[5,6],"run":"r"})"
          "\n",
      "b = 1\na = 0.05\nname = \"x\"\n[table]\ninner = [1, 2]\n");
  CHECK(run.state == RunState::kDone);
  REQUIRE(run.start);
  CHECK(run.start->world_size == 2);
  CHECK(run.layout == "dp=2, zero=1");
  REQUIRE(run.start->tensor_parallel);
  CHECK(run.start->tensor_parallel->sentence == "tp=2 divides 5 of 6 layers");
  CHECK(run.start->parameters == 7);
  CHECK(!run.start->steps);
  REQUIRE(run.steps.size() == 2);
  CHECK(run.steps[0].data_seconds == 0.1);
  CHECK(std::isnan(run.steps[0].gradient_norm));
  CHECK(std::isnan(run.steps[1].step_seconds));
  CHECK(run.evals.at(0).val_error == 0.1);
  CHECK(run.checkpoints.at(0).path == "checkpoints/step-000000002");
  CHECK(run.ranks.at(0).pid == 12);
  CHECK(run.confusion->counts[1][0] == 3);
  CHECK(run.sample->text == "q\u00e9");
  CHECK(std::isnan(run.done->loss));
  CHECK(run.done->peak_memory_bytes == std::vector<int64_t>{5, 6});
  REQUIRE(run.config.size() == 4);
  CHECK(run.config[0].key == "b");
  CHECK(run.config[1].value == "0.05");
  CHECK(run.config[2].value == "x");
  CHECK(run.config[3].key == "table.inner");
  CHECK(config_value(run, "b") == "1");
  CHECK(config_value(run, "missing") == "");
}

TEST_CASE("read_run: any prefix of a file opens, as a kill may leave it") {
  Folder folder;
  const std::string whole = std::string(kStart) + step(1) + step(2);
  for (size_t size = 0; size <= whole.size(); ++size) {
    const RunRecord run = folder.read(whole.substr(0, size));
    CHECK(run.state == RunState::kOpen);
    CHECK(run.steps.size() <= 2);
  }
}

TEST_CASE("read_run: a broken line that is not the last one names file and line") {
  Folder folder;
  const std::string text = folder.error(std::string(kStart) + "{\"event\":\"st\n" + step(1));
  CHECK(contains(text, "metrics.jsonl:2: "));
  CHECK(folder.error(std::string(kStart) + "{\"event\":\"st\n\n  \n") == "no error");
}

TEST_CASE("read_run: what a resume undid is gone") {
  Folder folder;
  std::string metrics = kStart;
  for (int i = 1; i <= 6; ++i)
    metrics += step(i) + (i % 2 == 0 ? R"({"event":"eval","step":)" + std::to_string(i) +
                                           R"(,"val_loss":9})"
                                           "\n"
                                     : "");
  metrics += R"({"event":"checkpoint","step":4,"path":"c"})"
             "\n"
             R"({"event":"interrupted","step":6})"
             "\n";
  CHECK(folder.read(metrics).state == RunState::kInterrupted);
  metrics += std::string(kStart) +
             R"({"event":"resume","step":4,"from":"c"})"
             "\n" +
             step(5, R"(,"learning_rate":0.5)");
  const RunRecord run = folder.read(metrics);
  CHECK(run.state == RunState::kOpen);
  REQUIRE(run.steps.size() == 5);
  CHECK(run.steps.back().learning_rate == 0.5);
  CHECK(run.evals.size() == 2);
  CHECK(run.checkpoints.size() == 1);
  CHECK(run.resumes.at(0).step == 4);
  // A run that begins anew in the same file takes the place of the first.
  const RunRecord anew = folder.read(metrics + kStart + step(1));
  CHECK(anew.steps.size() == 1);
  CHECK(anew.resumes.empty());
}

TEST_CASE("read_run: a failure stands until the run goes on; what was changed and what is missing is kept") {
  Folder folder;
  std::string metrics = kStart + step(1) +
                        R"({"event":"missing_lines","lines":3})"
                        "\n" +
                        step(5) +
                        R"({"event":"failed","exit_code":4,"cause":"rank 1 was killed"})"
                        "\n";
  const RunRecord failed = folder.read(metrics);
  CHECK(failed.state == RunState::kFailed);
  CHECK(failed.failure.exit_code == 4);
  CHECK(failed.failure.cause == "rank 1 was killed");
  CHECK(failed.missing_lines == 3);
  metrics += std::string(kStart) + R"({"event":"resume","step":5})"
                                   "\n"
                                   R"({"event":"changed","step":5,"setting":"lr","from":"0.1","to":"0.2"})"
                                   "\n";
  const RunRecord open = folder.read(metrics);
  CHECK(open.state == RunState::kOpen);
  REQUIRE(open.changes.size() == 1);
  CHECK(open.changes[0].setting == "lr");
  CHECK(open.changes[0].step == 5);
  CHECK(open.missing_lines == 3);
}

TEST_CASE("read_run: values of the wrong kind name line, key, what was expected and what was found") {
  Folder folder;
  const auto check = [&](const std::string& line, const std::string& expected) {
    const std::string text = folder.error(std::string(kStart) + line + "\n");
    CAPTURE(text);
    CHECK(contains(text, "metrics.jsonl:2: "));
    CHECK(contains(text, expected));
  };
  check(R"([1,2])", "expected a JSON object, found a list");
  check(R"("step")", "expected a JSON object, found \"step\"");
  check(R"({"step":1})", "'event': expected a string, found nothing");
  check(R"({"event":3})", "'event': expected a string, found 3");
  check(R"({"event":"step"})", "'step': expected a whole number from 0 up, found nothing");
  check(R"({"event":"step","step":1.5})", "found 1.5");
  check(R"({"event":"step","step":-1})", "found -1");
  check(R"({"event":"step","step":18446744073709551615})", "found 18446744073709551615");
  check(R"({"event":"step","step":1,"loss":"<b>"})", "'loss': expected a number or null, found \"<b>\"");
  check(R"({"event":"start","world_size":null})", "'world_size'");
  check(R"({"event":"ranks"})", "'ranks'");
  check(R"({"event":"ranks","ranks":[3]})", "expected a JSON object");
  check(R"({"event":"confusion","step":1,"classes":["a"],"counts":[]})", "0 rows for 1 classes");
  check(R"({"event":"confusion","step":1,"classes":["a"],"counts":[[1,2]]})", "2 columns for 1 classes");
  check(R"({"event":"confusion","step":1,"classes":["a"],"counts":[["x"]]})", "found \"x\"");
  check(R"({"event":"confusion","step":1,"classes":[1],"counts":[[1]]})", "'classes'");
  check(R"({"event":"done","step":1,"peak_memory_bytes":[-1]})", "found -1");
}

TEST_CASE("read_run: files that are missing or are no files") {
  Folder folder;
  CHECK_THROWS_WITH_AS(read_run(folder.root / "nowhere"), doctest::Contains("metrics.jsonl: no such file"), Error);
  CHECK(folder.read(kStart).config.empty());
  CHECK(contains(folder.error(kStart, "a = 1\nb = = 2\n"), "config.toml:2: "));
}

}  // namespace
}  // namespace cohort::report
