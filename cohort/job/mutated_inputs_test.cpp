// Damaged layouts and configurations: refused with one line, or taken as what they now say; never anything else.

#include <doctest/doctest.h>

#include <fstream>
#include <string>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"
#include "cohort/job/config.h"
#include "cohort/job/layout.h"
#include "tests/support/mutation.h"

namespace cohort {
namespace {

struct Outcomes {
  int accepted = 0, refused = 0;
};

/// Calls `take`, which may end in an Error(kBadInput) of one line.
template <typename Take>
void try_to(const Take& take, Outcomes& outcomes) {
  try {
    take();
    ++outcomes.accepted;
  } catch (const Error& error) {
    const std::string what = error.what();
    REQUIRE_MESSAGE(error.code() == ErrorCode::kBadInput, what);
    REQUIRE_MESSAGE(what.find('\n') == std::string::npos, what);
    ++outcomes.refused;
  }
}

/// A layout that is accepted holds together: its own text is read back as the same one.
void take_layout(const std::string& text) {
  const Layout layout = parse_layout(text, 0);
  REQUIRE_MESSAGE(layout.num_ranks() >= 1, text);
  REQUIRE_MESSAGE(to_json(parse_layout(to_json(layout).dump(), layout.num_ranks())) == to_json(layout), text);
}

TEST_CASE("mutation: layouts as keys and as JSON") {
  const std::string json =
      R"({"dp": 2, "microbatches": 4, "schedule": "gpipe", "zero": 1, "recompute": "all", "order": "tp-pp-dp",)"
      R"( "stages": [{"layers": ["a", "b"], "worker": 0}, {"layers": ["c"], "worker": 1}, {"layers": ["d"], "worker": 1}]})";
  const std::string keys = "pp=2,tp=2,microbatches=4,schedule=interleaved:2,zero=1,recompute=auto,split=3/7/9,order=tp-pp-dp,sequence=1";
  for (const std::string& whole : {json, keys, std::string("dp=4,zero=3,compress=topk:0.1")}) {
    Outcomes outcomes;
    for (size_t length = 0; length < whole.size(); ++length) try_to([&] { take_layout(whole.substr(0, length)); }, outcomes);
    for (uint64_t seed = 1; seed <= 3000; ++seed) try_to([&] { take_layout(mutated(whole, seed)); }, outcomes);
    CHECK(outcomes.refused > 1000);
    CHECK(outcomes.accepted > 10);
  }
  Outcomes outcomes;
  const std::vector<std::string> odd = {"{\"stages\": " + std::string(100'000, '['),
                                        R"({"dp": 1e999})",
                                        R"({"dp": 99999999999999999999})",
                                        R"({"dp": 2147483647, "pp": 2147483647, "tp": 4})",
                                        "dp=2147483647,tp=2147483647",
                                        R"({"stages": [{"layers": []}]})",
                                        R"({"stages": [null]})",
                                        std::string("{\"dp\0\": 2}", 10)};
  for (const std::string& text : odd) try_to([&] { take_layout(text); }, outcomes);
  CHECK(outcomes.accepted == 0);
}

TEST_CASE("mutation: configurations") {
  const TemporaryFolder folder;
  const std::string path = folder / "c.toml", whole = to_toml(Config());
  REQUIRE(whole.size() > 500);
  Outcomes outcomes;
  const auto take = [&](const std::string& text) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
    try_to(
        [&] {
          Config config;
          read_config_file(path, config);
          // What was accepted is written so that it reads back.
          Config again;
          std::ofstream(path, std::ios::binary | std::ios::trunc) << to_toml(config);
          read_config_file(path, again);
          REQUIRE_MESSAGE(to_toml(again) == to_toml(config), text);
        },
        outcomes);
  };
  for (size_t length = 0; length < whole.size(); length += 7) take(whole.substr(0, length));
  for (uint64_t seed = 1; seed <= 2000; ++seed) take(mutated(whole, seed));
  CHECK(outcomes.refused > 500);
  CHECK(outcomes.accepted > 50);
  take(std::string(100'000, '['));
  take("a" + std::string(100'000, '.') + "b = 1");
  take("lr = " + std::string(100'000, '9'));
  take(std::string("model = \"f\0c\"", 13));
}

TEST_CASE("a configuration of one key with very many dots is a line, not a crash") {
  const TemporaryFolder folder;
  std::string key = "[a";
  for (int i = 0; i < 400'000; ++i) key += ".a";
  std::ofstream(folder / "c.toml") << key << "]\n";
  Config config;
  CHECK_THROWS_WITH_AS(read_config_file(folder / "c.toml", config), doctest::Contains("c.toml:1: more than 1000 dots"), Error);
}

}  // namespace
}  // namespace cohort
