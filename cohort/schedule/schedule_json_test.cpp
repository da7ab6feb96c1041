#include <doctest/doctest.h>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"
#include "cohort/schedule/schedule.h"
#include "cohort/schedule/scheduler.h"
#include "tests/support/errors.h"

namespace cohort {
namespace {

std::string refusal(const std::string& text) {
  return error_or_none([&] { check_schedule(schedule_from_json(Json::parse(text))); });
}

TEST_CASE("schedules come back from their JSON as they were") {
  for (const bool transfers : {false, true})
    for (const char* name : {"gpipe", "1f1b", "interleaved:2", "bfs:2", "zb-h1", "zb-v"}) {
      Schedule schedule = make_schedule(name, {.num_ranks = 2, .num_micro_batches = 12, .edges = {{0, 1}}});
      if (transfers) add_transfers(schedule);
      const Schedule back = schedule_from_json(Json::parse(to_json(schedule).dump()));
      CHECK(back.name == schedule.name);
      CHECK(back.num_stages == schedule.num_stages);
      CHECK(back.num_micro_batches == schedule.num_micro_batches);
      CHECK(back.edges == schedule.edges);
      CHECK(back.actions == schedule.actions);
    }
}

TEST_CASE("name and edges may be left out") {
  const Schedule schedule =
      schedule_from_json(Json::parse(R"({"stages": 2, "micro_batches": 1, "ranks": [["F0.0", "B0.0"], ["F1.0", "B1.0"]]})"));
  CHECK(schedule.edges == chain_edges(2));
  CHECK(check_schedule(schedule).peak_stash == std::vector<int>{1, 1});
}

TEST_CASE("a file is refused with its path and the position") {
  const TemporaryFolder folder;
  const std::string path = folder / "mine.json";
  write_file_atomically(path, R"({"stages": 1, "micro_batches": 1, "ranks": [["F0.0", "X0.0"]]})");
  try {
    read_schedule_file(path);
    FAIL("accepted");
  } catch (const Error& error) {
    const std::string text = error.what();
    CHECK(text.find(path) == 0);
    CHECK(text.find("rank 0, action 1: ") != std::string::npos);
  }
  write_file_atomically(path, R"({"stages": 1, "micro_batches": 1, "ranks": [["F0.0", "B0.0"]]})");
  CHECK(read_schedule_file(path).num_stages == 1);
  write_file_atomically(path, R"({"stages": 1,)");
  CHECK_THROWS_AS(read_schedule_file(path), Error);
  CHECK_THROWS_AS(read_schedule_file(folder / "none.json"), Error);
}

TEST_CASE("damaged and hostile files are refused") {
  const auto with = [](const std::string& action) {
    return refusal(R"({"stages": 2, "micro_batches": 1, "ranks": [["F0.0", "B0.0"], ["F1.0", )" + action + "]]}");
  };
  CHECK(with("\"B1.0\"").empty());
  for (const char* action : {"\"\"",       "\"B\"",     "\"B1\"",      "\"B1.\"",    "\"B.0\"",      "\"B1.0 \"",
                             "\" B1.0\"",  "\"b1.0\"",  "\"B-1.0\"",   "\"B+1.0\"",  "\"B1.00000\"", "\"B99999999999.0\"",
                             "\"B1.0>0\"", "\"SF1.0\"", "\"SF1.0<0\"", "\"SF1.0>\"", "\"RF1.0>0\"",  "3",
                             "null",       "[\"B1.0\"]"})
    CHECK_MESSAGE(with(action).find("rank 1, action 1: ") != std::string::npos, action);
  CHECK(with("\"B2.0\"").find("there is no stage 2") != std::string::npos);
  CHECK(with("\"B1.0\", \"SF1.0>0\"").find("stage 1 hands nothing to stage 0") != std::string::npos);
  CHECK(refusal("[]") == "schedule: not a JSON object");
  CHECK(refusal(R"({"stage": 2})").find("did you mean 'stages'?") != std::string::npos);
  CHECK(refusal(R"({"stages": 2})").find("'micro_batches' is missing") != std::string::npos);
  for (const char* count : {"0", "-1", "4097", "1e3", "\"2\"", "99999999999999999999", "null"})
    CHECK_MESSAGE(!refusal(std::string(R"({"micro_batches": 1, "ranks": [["F0.0", "B0.0"]], "stages": )") + count + "}").empty(), count);
  for (const char* edges : {"3", "[[0]]", "[[0, 1, 2]]", "[[1, 0]]", "[[0, 2]]", "[[0, 1], [0, 1]]", "[[-1, 1]]", "[[0, 1.5]]"})
    CHECK_MESSAGE(
        !refusal(std::string(R"({"stages": 2, "micro_batches": 1, "ranks": [["F0.0", "B0.0"], ["F1.0", "B1.0"]], "edges": )") + edges + "}")
             .empty(),
        edges);
  for (const char* ranks : {"[]", "{}", "[3]", "[[]]"})
    CHECK_MESSAGE(!refusal(std::string(R"({"stages": 1, "micro_batches": 1, "ranks": )") + ranks + "}").empty(), ranks);
  CHECK_FALSE(refusal(R"({"stages": 4096, "micro_batches": 4096, "ranks": [["F0.0", "B0.0"]]})").empty());
}

}  // namespace
}  // namespace cohort
