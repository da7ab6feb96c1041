#include "cohort/job/layout.h"

#include <doctest/doctest.h>

#include <fstream>
#include <string>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"

namespace cohort {
namespace {

TEST_CASE("layout: keys, and the data degree that is left") {
  const Layout layout = parse_layout("pp=2,tp=2,microbatches=4,schedule=zb-h1,zero=1,recompute=auto,split=3,order=tp-pp-dp,sequence=1", 12);
  CHECK(layout.dp == 3);
  CHECK(layout.num_ranks() == 12);
  CHECK(layout.is_model_parallel());
  CHECK(layout.is_even());
  CHECK(num_pipelines(layout) == 3);
  CHECK(to_json(parse_layout(to_text(layout), 12)) == to_json(layout));
  CHECK(to_json(parse_layout(to_json(layout).dump(), 12)) == to_json(layout));
}

TEST_CASE("layout: every key survives text, JSON and a file") {
  const std::string text =
      "dp=3,pp=2,schedule=zb-h1,microbatches=4,split=3,tp=2,sequence=1,zero=1,accumulate=2,precision=bf16,recompute=0-5/9,order=tp-pp-dp";
  for (const std::string& each : {text, std::string("dp=2,shares=3:1"), std::string("dp=2,compress=int8"), std::string("single")}) {
    CAPTURE(each);
    const Layout layout = parse_layout(each, 0);
    CHECK(to_text(layout) == each);
    CHECK(to_json(parse_layout(to_json(layout).dump(), 0)) == to_json(layout));
    const TemporaryFolder folder;
    std::ofstream(folder / "l.json") << to_json(layout);
    CHECK(to_text(parse_layout(folder / "l.json", 0)) == each);
    std::ofstream(folder / "plan.json") << Json{{"format", "cohort-plan"}, {"layout", to_json(layout)}, {"reasons", Json::array()}};
    CHECK(to_text(parse_layout(folder / "plan.json", 0)) == each);
  }
  Layout asynchronous;  // Which no run can do yet.
  asynchronous.dp = 2, asynchronous.sync = parse_sync("stale:3");
  CHECK(to_text(asynchronous) == "dp=2,sync=stale:3");
  CHECK(to_json(asynchronous)["sync"] == "stale:3");
}

TEST_CASE("layout: layers that recompute") {
  CHECK(recomputed_layers("all", 3) == std::vector<bool>{true, true, true});
  CHECK(recomputed_layers("auto", 2) == std::vector<bool>{false, false});
  CHECK(recomputed_layers("0-1/3", 5) == std::vector<bool>{true, true, false, true, false});
  CHECK_THROWS_WITH_AS(recomputed_layers("0-5", 5), doctest::Contains("names layer 5, and the model has layers 0 to 4"), Error);
  for (const std::string text : {"none", "all", "0-1/3", "2"}) CHECK(recompute_text(recomputed_layers(text, 5)) == text);
}

TEST_CASE("layout: a schedule's file may end the keys, a layout's file is one whatever its name") {
  CHECK(parse_layout("pp=2,schedule=mine.json", 2).schedule == "mine.json");
  CHECK(parse_layout("schedule=mine.json", 1).schedule == "mine.json");
  CHECK_THROWS_WITH_AS(parse_layout("dp=2, dp=2", 2), doctest::Contains("dp is given twice"), Error);
  const TemporaryFolder folder;
  for (const char* name : {"a.json", "lr=1.json"}) {
    std::ofstream(folder / name) << R"({"pp": 2, "microbatches": "3", "sequence": false})";
    const Layout layout = parse_layout(folder / name, 4);
    CHECK(layout.dp == 2);
    CHECK(layout.microbatches == 3);
  }
}

TEST_CASE("layout: stages of a file") {
  const Layout even =
      parse_layout(R"({"dp": 2, "stages": [{"layers": ["a", "b"]}, {"layers": ["c"]}, {"layers": ["d"], "worker": 0}]})", 4);
  CHECK(even.pp == 2);
  CHECK(even.data_degrees() == std::vector<int>{2, 2});
  CHECK(num_pipelines(even) == 2);
  const Layout uneven = parse_layout(R"({"tp": 2, "stages": [{"layers": ["a"], "dp": 3}, {"layers": ["b"]}]})", 8);
  CHECK(!uneven.is_even());
  CHECK(uneven.data_degrees() == std::vector<int>{3, 1});
  CHECK(num_pipelines(uneven) == 1);
  CHECK(uneven.num_ranks() == 8);
  CHECK(parse_layout(to_text(uneven), 8).stages == uneven.stages);
}

TEST_CASE("layout: what is refused says what to do") {
  for (const auto& [text, words] : std::initializer_list<std::pair<const char*, const char*>>{
           {"microbatch=2", "did you mean 'microbatches'"},
           {"pp=0", "from 1 to"},
           {"pp=2,split=3/3", "rising layer numbers"},
           {"pp=2,compress=int8", "compress=none"},
           {"sync=asink", "none of: step async"},
           {"sync=stale:-1", "sync=stale:-1 is none of"},
           {"recompute=3-1", "rising numbers of layers"},
           {"recompute=some", "rising numbers of layers"},
           {"accumulate=0", "from 1 to"},
           {"precision=fp8", "precision is one of"},
           {"shares=3:-1", "shares"},
           {R"({"format": "other", "layout": {}})", "expected a layout, or a plan"},
           {R"({"stages": []})", "not a list of stages"},
           {R"({"stages": [{"layers": ["a"]}, {"layers": ["b"], "worker": 2}]})", "without gaps"},
           {R"({"stages": [{"layers": ["a"], "dp": 2}, {"layers": ["b"], "worker": 0}]})", "stages[1].dp is 1, but worker 0 has 2"},
           {R"({"order": "pp-dp-tp", "stages": [{"layers": ["a"], "dp": 2}, {"layers": ["b"]}]})", "leave order out"},
           {R"({"pp": 2.5})", "neither a string nor a whole number"},
           {R"([])", "layout"}})
    CHECK_THROWS_WITH_AS(parse_layout(text, 0), doctest::Contains(words), Error);
}

}  // namespace
}  // namespace cohort
