#include <doctest/doctest.h>

#include <fstream>
#include <string>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/plan/public/zero_bubble.h"
#include "cohort/schedule/simulate.h"
#include "tests/support/mutation.h"

namespace cohort {
namespace {

const std::string kHeader =
    "model,stages,microbatches,forward,backward_input,backward_weight,transfer,hidden,heads,layers,sequence_length\n";
const std::string kTable = kHeader + "small,2,6,10,9,5,1,512,8,4,128\nlarge,4,8,10,9,5,0,1024,16,9,512\n";

struct Files {
  TemporaryFolder folder;

  std::vector<InstanceAnswer> solve(const std::string& text, const InstanceOptions& options = {}) const {
    const std::string path = folder.path() + "/settings.csv";
    std::ofstream(path, std::ios::binary) << text;
    return solve_zero_bubble(path, options);
  }
  std::string refusal(const std::string& text, const InstanceOptions& options = {}) const {
    try {
      solve(text, options);
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  }
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_CASE("zero-bubble settings: an answer a row, whose table is the order and can be executed") {
  const Files files;
  const std::vector<InstanceAnswer> answers = files.solve(kTable);
  REQUIRE(answers.size() == 2);
  for (const InstanceAnswer& answer : answers) {
    CHECK(answer.lower_bound <= answer.objective);
    CHECK(answer.optimal == (answer.objective - answer.lower_bound < 1e-9));
    const Schedule schedule = schedule_from_json(answer.plan["table"]);
    CHECK(schedule.num_ranks() == static_cast<int>(answer.plan["order"].size()));
    CHECK(answer.plan["order"][0][0] == "F0");
    CHECK(answer.plan["schedules"].size() == 6);
    for (const Json& other : answer.plan["schedules"]) CHECK(other["bubble_of_longest_stage"] <= other["bubble"].get<double>() + 1e-12);
  }
  CHECK(answers[0].plan["schedules"][1]["name"] == "interleaved:2");  // 4 layers on 2 stages.
  // 1F1B without transfers: p - 1 of m + p - 1 idle.
  CHECK(answers[1].plan["schedules"][0]["bubble"].get<double>() == doctest::Approx(3.0 / 11));
  InstanceOptions options;
  options.memory_bytes = 2;
  const std::vector<InstanceAnswer> tight = files.solve(kTable, options);
  CHECK(tight[1].objective > answers[1].objective);
  CHECK(tight[1].plan["peak"].get<double>() <= 2 + 1e-9);
}

TEST_CASE("zero-bubble settings: without shapes a weight part keeps all of its activations") {
  const Files files;
  const std::string table = "stages,microbatches,forward,backward_input,backward_weight,transfer\n4,8,10,10,10,0\n";
  InstanceOptions options;
  options.memory_bytes = 4;
  const InstanceAnswer answer = files.solve(table, options).front();
  // ZB-H1 with equal parts.
  CHECK(answer.plan["schedules"][2]["bubble"].get<double>() == doctest::Approx(3.0 / 27));
  CHECK(answer.objective <= 3.0 / 27 + 1e-9);
  CHECK(answer.plan["schedules"][1]["name"] == "interleaved:2");
}

TEST_CASE("zero-bubble settings: refusals name line and column") {
  const Files files;
  const auto with = [](const std::string& row) { return kHeader + row + "\n"; };
  CHECK(has(files.refusal(with("m,0,6,10,9,5,1,512,8,4,128")), ":2: stages is '0', expected a whole number from 1"));
  CHECK(has(files.refusal(with("m,2,6,-1,9,5,1,512,8,4,128")), ":2: forward is '-1', expected a positive number"));
  CHECK(has(files.refusal(with("m,2,6,10,nan,5,1,512,8,4,128")), "backward_input"));
  CHECK(has(files.refusal(with("m,2,6,10,9,5,-1,512,8,4,128")), "transfer is '-1', expected a number of at least 0"));
  CHECK(has(files.refusal(with("m,9999,6,10,9,5,1,512,8,4,128")), "stages is '9999'"));
  CHECK(has(files.refusal(with("m,2,6,10,9,5,1,512,8,4")), "10 fields, and the header has 11"));
  CHECK(has(files.refusal("stages,microbatches\n2,6\n"), "no column 'forward'"));
  CHECK(has(files.refusal(kHeader), "no rows"));
  InstanceOptions options;
  options.memory_bytes = 0.5;
  CHECK(has(files.refusal(kTable, options), "no schedule fits below 1"));
}

TEST_CASE("mutation: zero-bubble settings") {
  const Files files;
  int read = 0, refused = 0;
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    const std::string what = files.refusal(mutated(kTable, seed));
    REQUIRE_MESSAGE(what.find('\n') == std::string::npos, what);
    ++(what == "none" ? read : refused);
  }
  CHECK(read > 10);
  CHECK(refused > 200);
}

}  // namespace
}  // namespace cohort
