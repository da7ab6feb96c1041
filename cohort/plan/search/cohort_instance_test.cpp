// Planner instances: cases worked by hand, what is refused, and damaged files.
#include "cohort/plan/search/cohort_instance.h"

#include <doctest/doctest.h>

#include <fstream>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "tests/support/mutation.h"

namespace cohort {
namespace {

std::string write(const TemporaryFolder& folder, const std::string& text, const std::string& name = "i.json") {
  std::ofstream(folder / name, std::ios::binary | std::ios::trunc) << text;
  return folder / name;
}

Json layer(const std::string& name, double seconds, double output_bytes = 0) {
  return {{"name", name},     {"forward_seconds", seconds / 4}, {"backward_seconds", seconds * 3 / 4}, {"weight_bytes", 2},
          {"stash_bytes", 1}, {"output_bytes", output_bytes}};
}

Json stages() {
  return {{"layers", {layer("a", 4, 8), layer("b", 2, 4), layer("c", 2)}},
          {"edges", Json::array({Json::array({0, 1}), Json::array({1, 2})})},
          {"devices", 2},
          {"memory_bytes", 100},
          {"link", {{"latency_seconds", 0}, {"bytes_per_second", 8}}},
          {"objective", "throughput"},
          {"microbatches", 4},
          {"allow", {"pipeline"}}};
}

/// The one line that refuses it.
std::string refusal(const std::string& text, ErrorCode code = ErrorCode::kBadInput) {
  const TemporaryFolder folder;
  const std::string path = write(folder, text);
  try {
    solve_cohort_instance(path, {});
  } catch (const Error& error) {
    const std::string what = error.what();
    CHECK(error.code() == code);
    CHECK(what.find('\n') == std::string::npos);
    CHECK(what.find(path) != std::string::npos);
    return what;
  }
  FAIL("accepted: " << text);
  return "";
}

/// One thing of it changed.
Json with(Json json, const char* pointer, const Json& value) {
  json[Json::json_pointer(pointer)] = value;
  return json;
}

TEST_CASE("cohort instance: throughput and step by hand") {
  const TemporaryFolder folder;
  const std::string path = write(folder, stages().dump());
  InstanceAnswer answer = solve_cohort_instance(path, {});
  CHECK(answer.objective == doctest::Approx(5));  // a: 4 + 1 out; b, c: 1 in + 4.
  CHECK(answer.optimal);
  CHECK(answer.plan["stages"] ==
        Json::parse(R"([{"layers":[0],"devices":[0],"load_seconds":5.0},{"layers":[1,2],"devices":[1],"load_seconds":5.0}])"));
  CHECK(solve_cohort_instance(path, {.devices = 1}).objective == doctest::Approx(8));
  CHECK(solve_cohort_instance(path, {.bytes_per_second = {16}}).objective == doctest::Approx(4.5));
  write(folder, with(stages(), "/allow", {"pipeline", "replicate"}).dump());
  CHECK(solve_cohort_instance(path, {}).objective == doctest::Approx(4));  // All on both.
  write(folder, with(stages(), "/objective", "step").dump());
  CHECK(solve_cohort_instance(path, {}).objective == doctest::Approx(5 + 5 + 3 * 5));
  CHECK(solve_cohort_instance(path, {.batch = 1}).objective == doctest::Approx(8));  // One stage.
}

TEST_CASE("cohort instance: what is wrong is named with its place") {
  const auto says = [](const Json& json, const std::string& part) {
    const std::string what = refusal(json.dump());
    CHECK_MESSAGE(what.find(part) != std::string::npos, what);
  };
  says(with(stages(), "/devices", 0), "\"devices\": expected a whole number from 1");
  says(with(stages(), "/edges/0/1", 3), "edges[0]: expected two different layers from 0 to 2, found [0,3]");
  says(with(stages(), "/edges/1", Json::array({1, 0})), "expected no cycle");
  says(with(stages(), "/layers/1/name", "a"), "layers[1] \"name\": expected a name of its own");
  says(with(stages(), "/layers/1/forward_seconds", -2), "layers[1] \"forward_seconds\"");
  says(with(stages(), "/link/bytes_per_second", "fast"), "\"link\" \"bytes_per_second\"");
  says(with(stages(), "/memory_byte", 3), "expected no \"memory_byte\"");
  says(with(stages(), "/allow", {"tensor"}), "\"allow\": expected \"pipeline\" or \"replicate\"");
  says(with(stages(), "/microbatches", 0), "\"microbatches\"");
  CHECK(refusal(with(stages(), "/memory_bytes", 2).dump(), ErrorCode::kInfeasible).find("the largest one 3") != std::string::npos);
}

TEST_CASE("mutation: cohort instance") {
  const TemporaryFolder folder;
  const std::string whole = stages().dump();
  int solved = 0, refused = 0;
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    const std::string path = write(folder, mutated(whole, seed));
    try {
      const InstanceAnswer answer = solve_cohort_instance(path, {.search_seconds = 0.05});
      REQUIRE(answer.objective >= answer.lower_bound);
      ++solved;
    } catch (const Error& error) {
      const std::string what = error.what();
      REQUIRE_MESSAGE((error.code() == ErrorCode::kBadInput || error.code() == ErrorCode::kInfeasible), what);
      REQUIRE_MESSAGE(what.find('\n') == std::string::npos, what);
      ++refused;
    }
  }
  CHECK(solved > 2);
  CHECK(refused > 300);
}

}  // namespace
}  // namespace cohort
