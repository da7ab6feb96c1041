// Files of model profiles: what survives, what is refused, what damage does.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <tuple>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/random.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/plan/profile/model_profile.h"
#include "tests/support/errors.h"
#include "tests/support/mutation.h"
#include "tests/support/places.h"

namespace cohort {
namespace {

/// All members of layers and costs differ from what they are when left out.
ModelProfile random_profile(uint64_t seed, int num_layers, int num_points) {
  ModelProfile profile{"\xc3\xa9 \"m\"", "random", {}, {{-1, 0}}, {{0, num_layers - 1}}, {}};
  uint64_t counter = 0;
  const auto below = [&](uint64_t end) { return static_cast<int64_t>(random_bits(seed, ++counter) % end); };
  const auto unit = [&] { return unit_interval(random_bits(seed, ++counter)); };
  for (int i = 0; i < num_layers; ++i) {
    profile.layers.push_back({concat("layer", i), "linear", 1 + below(1000), 1 + below(1000), 1 + below(1000),
                              static_cast<OutputKept>(below(3)), static_cast<int>(2 + below(9)), static_cast<int>(1 + below(3))});
    if (i > 0) profile.edges.emplace_back(i - 1, i);
  }
  for (int p = 0; p < num_points; ++p) {
    ProfilePoint& point = profile.points.emplace_back(ProfilePoint{p % 2 == 0 ? "" : "x", "bf16", 1 + p / 2, 1 + below(9), {}});
    for (int i = 0; i < num_layers; ++i)
      point.layers.push_back({unit() * 1e-5, unit() / 3, unit() * 1e5, unit(), 1 + unit(), below(INT64_C(1) << 44), below(1 << 20)});
  }
  std::sort(profile.points.begin(), profile.points.end(),
            [](const auto& a, const auto& b) { return std::tie(a.device, a.tp) < std::tie(b.device, b.tp); });
  return profile;
}

bool same_bits(const LayerCost& a, const LayerCost& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

void check_same(const ModelProfile& a, const ModelProfile& b) {
  REQUIRE(a.layers.size() == b.layers.size());
  REQUIRE(a.points.size() == b.points.size());
  CHECK(a.model == b.model);
  CHECK(a.source == b.source);
  CHECK(a.edges == b.edges);
  CHECK(a.tied == b.tied);
  const auto parts = [](const ProfiledLayer& x) {
    return std::tie(x.name, x.kind, x.num_trained, x.num_frozen, x.buffer_bytes, x.output_kept, x.tensor_parts, x.num_tensor_exchanges);
  };
  for (size_t i = 0; i < a.layers.size(); ++i) CHECK(parts(a.layers[i]) == parts(b.layers[i]));
  for (size_t p = 0; p < a.points.size(); ++p) {
    const auto key = [](const ProfilePoint& x) { return std::tie(x.device, x.precision, x.tp, x.micro_batch); };
    CHECK(key(a.points[p]) == key(b.points[p]));
    CHECK(
        std::equal(a.points[p].layers.begin(), a.points[p].layers.end(), b.points[p].layers.begin(), b.points[p].layers.end(), same_bits));
  }
}

TEST_CASE("a model profile survives its file to the last bit") {
  const TemporaryFolder folder;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const ModelProfile profile = random_profile(seed, 1 + static_cast<int>(seed), 1 + static_cast<int>(seed % 5));
    if (profile.layers.size() == 1) continue;
    const std::string path = folder / "profile.json";
    write_file_atomically(path, to_json(profile).dump());
    check_same(read_model_profile(path), profile);
    // Points in any order: they are sorted.
    ModelProfile turned = profile;
    std::reverse(turned.points.begin(), turned.points.end());
    check_same(model_profile_from_json(to_json(turned), "x"), profile);
  }
  ModelProfile plain{"m", "", {{"a", "linear", 1}, {"b", "add"}}, {{-1, 0}, {0, 1}},
                     {},  {}};  // Ends of intervals that are all 1 are left out, and so is what is 0.
  plain.points = {{"", "fp32", 1, 1, {{1, 2, 3, 1, 1, 4, 5}, {}}}};
  const Json json = to_json(plain);
  CHECK_FALSE(json["points"][0].contains("low"));
  CHECK(json["layers"][1].size() == 3);
  check_same(model_profile_from_json(json, "x"), plain);
}

/// What is left out, one number for all layers, and the ends.
TEST_CASE("a file by hand may leave out what is usual") {
  const std::string text =
      R"({"model": "m", "layers": [{"name": "a", "kind": "k", "num_trained": 4}], "edges": [], "points": [{"micro_batch": 2,)"
      R"( "forward_seconds": [1], "backward_input_seconds": [0], "backward_weight_seconds": [0.5], "low": 0.5, "high": [3],)"
      R"( "stash_bytes": [8], "output_bytes": [9]}]})";
  const ModelProfile profile = model_profile_from_json(Json::parse(text), "x");
  const ProfilePoint& point = profile.points.at(0);
  CHECK(std::tuple(point.device, point.precision, point.tp, point.micro_batch) == std::tuple("", "fp32", 1, 2));
  CHECK(same_bits(point.layers.at(0), {1, 0, 0.5, 0.5, 3, 8, 9}));
  CHECK(profile.layers[0].tensor_parts == 1);
  CHECK(profile.tied.empty());
}

TEST_CASE("a profile of one size is a model profile with one point") {
  Profile old{"m",  8,  {{"a", "linear", 1, 2, 3, 400, 50, 60, OutputKept::kByItself}, {"b", "relu"}}, {{-1, 0}, {0, 1}}, {{0, 1}},
              1e-6, 1e9};
  const ModelProfile profile = model_profile_from_json(to_json(old), "old.json");
  CHECK(profile.layers.at(0).num_trained == 100);
  CHECK(profile.layers.at(0).output_kept == OutputKept::kByItself);
  CHECK(profile.points.size() == 1);
  old.link_latency_seconds = old.link_bytes_per_second = 0;  // Links are a cluster's.
  CHECK(to_json(profile_at(profile, {"any", "fp32", 1, 8})) == to_json(old));
  Json bad = to_json(old);
  bad["layers"][1]["weight_bytes"] = -1;
  CHECK(error_or_none([&] { model_profile_from_json(bad, "old.json"); }) ==
        "old.json: layers[1]: 'weight_bytes' is -1; expected a whole number from 0 to 17592186044416");
}

TEST_CASE("what is wrong in a file is said with its place") {
  const Json json = to_json(random_profile(3, 4, 3));
  const auto refused = [&](const char* text, auto&& change) {
    Json changed = json;
    change(changed);
    const std::string what = error_or_none([&] { model_profile_from_json(changed, "f.json"); });
    CHECK_MESSAGE(what == std::string("f.json: ") + text, what);
  };
  refused("expected an object, found a list", [](Json& j) { j = Json::array(); });
  refused(
      "unknown key \"modle\" (did you mean 'model'?); keys: model source layers edges tied points sample_granularity codings measured_on",
      [](Json& j) { j["modle"] = 1; });
  refused("'model' is missing", [](Json& j) { j.erase("model"); });
  refused("'model' is 3; expected text", [](Json& j) { j["model"] = 3; });
  refused("'model' is \"a\\x0ab\": control characters are not accepted", [](Json& j) { j["model"] = "a\nb"; });
  refused("'source' has 5000 bytes; at most 4096 are accepted", [](Json& j) { j["source"] = std::string(5000, 'x'); });
  refused("'layers' is missing", [](Json& j) { j.erase("layers"); });
  refused("'layers' is an object; expected a list", [](Json& j) { j["layers"] = Json::object(); });
  refused("'layers' is empty", [](Json& j) { j["layers"] = Json::array(); });
  refused("'layers' has 65537 entries; at most 65536 are accepted", [](Json& j) { j["layers"] = std::vector<int>(65537); });
  refused("layers[2]: expected an object, found null", [](Json& j) { j["layers"][2] = nullptr; });
  refused("layers[2]: 'name' is missing", [](Json& j) { j["layers"][2].erase("name"); });
  refused("layers[2]: 'name' is empty", [](Json& j) { j["layers"][2]["name"] = ""; });
  refused("layers[2]: another layer is named \"layer0\", too", [](Json& j) { j["layers"][2]["name"] = "layer0"; });
  refused(
      "layers[1]: unknown key \"num_train\" (did you mean 'num_trained'?); keys: name kind num_trained num_frozen buffer_bytes "
      "output_kept tensor_parts num_tensor_exchanges",
      [](Json& j) { j["layers"][1]["num_train"] = 1; });
  refused("layers[1]: 'num_trained' is 1.5; expected a whole number from 0 to 4398046511104",
          [](Json& j) { j["layers"][1]["num_trained"] = 1.5; });
  refused("layers[1]: 'num_frozen' is 1; expected a whole number from 0 to 0", [](Json& j) {
    j["layers"][1]["num_trained"] = INT64_C(1) << 42;
    j["layers"][1]["num_frozen"] = 1;
  });
  refused("layers[1]: 'buffer_bytes' is 18446744073709551615; expected a whole number from 0 to 17592186044416",
          [](Json& j) { j["layers"][1]["buffer_bytes"] = UINT64_MAX; });
  refused("layers[0]: 'output_kept' is \"reader\" (did you mean 'readers'?); expected one of: no itself readers",
          [](Json& j) { j["layers"][0]["output_kept"] = "reader"; });
  refused("layers[0]: 'tensor_parts' is 0; expected a whole number from 1 to 1048576", [](Json& j) { j["layers"][0]["tensor_parts"] = 0; });
  refused("layers[0]: 'num_tensor_exchanges' is -1; expected a whole number from 0 to 1048576",
          [](Json& j) { j["layers"][0]["num_tensor_exchanges"] = -1; });
  refused("'edges' is missing", [](Json& j) { j.erase("edges"); });
  refused("'edges'[1]: expected a pair of layer indices", [](Json& j) { j["edges"][1] = {1, 2, 3}; });
  refused("'edges'[1] is 4; expected a whole number from 0 to 3", [](Json& j) { j["edges"][1] = {1, 4}; });
  refused("'edges'[1] is -2; expected a whole number from -1 to 3", [](Json& j) { j["edges"][1] = {-2, 1}; });
  refused("'edges'[1] is \"a\"; expected a whole number from -1 to 3", [](Json& j) { j["edges"][1] = {"a", 1}; });
  refused("'edges'[4] is [2, 0], which does not lead from an earlier to a later layer", [](Json& j) { j["edges"].push_back({2, 0}); });
  refused("'edges'[4] is [2, 2], which does not lead from an earlier to a later layer", [](Json& j) { j["edges"].push_back({2, 2}); });
  refused("'tied'[0] is -1; expected a whole number from 0 to 3", [](Json& j) { j["tied"][0] = {-1, 1}; });
  refused("'tied'[0] is [3, 1], which does not lead from an earlier to a later layer", [](Json& j) { j["tied"][0] = {3, 1}; });
  refused("'points' is missing", [](Json& j) { j.erase("points"); });
  refused("'points' is empty", [](Json& j) { j["points"] = Json::array(); });
  refused("'points' has 4097 entries; at most 4096 are accepted", [](Json& j) { j["points"] = std::vector<int>(4097); });
  refused("60000 layers at 40 points; at most 2097152 (layers x points) are accepted", [](Json& j) {
    j["layers"] = std::vector<int>(60000);
    j["points"] = std::vector<int>(40);
  });
  refused("points[1]: expected an object, found 3", [](Json& j) { j["points"][1] = 3; });
  refused("points[1]: 'precision' is \"fp64\" (did you mean 'fp32'?); expected one of: fp32 bf16 fp16",
          [](Json& j) { j["points"][1]["precision"] = "fp64"; });
  refused("points[1]: 'device' is null; expected text", [](Json& j) { j["points"][1]["device"] = nullptr; });
  refused("points[1]: 'tp' is 0; expected a whole number from 1 to 1048576", [](Json& j) { j["points"][1]["tp"] = 0; });
  refused("points[1]: 'micro_batch' is missing", [](Json& j) { j["points"][1].erase("micro_batch"); });
  refused("points[1]: 'micro_batch' is 0; expected a whole number from 1 to 1073741824",
          [](Json& j) { j["points"][1]["micro_batch"] = 0; });
  refused("points[1]: 'forward_seconds' is missing", [](Json& j) { j["points"][1].erase("forward_seconds"); });
  refused("points[1]: 'forward_seconds' is 1; expected a list", [](Json& j) { j["points"][1]["forward_seconds"] = 1; });
  refused("points[1]: 'backward_input_seconds' has 3 numbers for 4 layers",
          [](Json& j) { j["points"][1]["backward_input_seconds"] = {1, 2, 3}; });
  refused("points[1]: 'backward_weight_seconds'[3] is -0.5; expected a number from 0 to 1e+09",
          [](Json& j) { j["points"][1]["backward_weight_seconds"][3] = -0.5; });
  refused("points[1]: 'forward_seconds'[0] is null; expected a number from 0 to 1e+09",
          [](Json& j) { j["points"][1]["forward_seconds"][0] = nullptr; });
  CHECK(error_or_none([&] {
          Json changed = json;
          changed["points"][1]["forward_seconds"][2] = NAN;
          model_profile_from_json(changed, "f.json");
        }).find("'forward_seconds'[2]") != std::string::npos);
  refused("points[1]: 'low'[0] is 1.5; expected a number from 0 to 1", [](Json& j) { j["points"][1]["low"][0] = 1.5; });
  refused("points[1]: 'high' is 0.5; expected a number from 1 to 1e+06", [](Json& j) { j["points"][1]["high"] = 0.5; });
  refused("points[1]: 'stash_bytes'[2] is 1.0; expected a whole number from 0 to 17592186044416",
          [](Json& j) { j["points"][1]["stash_bytes"][2] = 1.0; });
  refused("points[1]: 'output_bytes'[2] is 17592186044417; expected a whole number from 0 to 17592186044416",
          [](Json& j) { j["points"][1]["output_bytes"][2] = (INT64_C(1) << 44) + 1; });
  refused("two points for any device, bf16, tp 2, micro-batch 3", [](Json& j) {
    j["points"][0]["tp"] = 2, j["points"][0]["micro_batch"] = 3;
    j["points"].push_back(j["points"][0]);
    j["points"].back()["forward_seconds"][0] = 7;
  });
  refused("unknown key \"micro_batch\"; keys: model source layers edges tied points sample_granularity codings measured_on",
          [](Json& j) { j["micro_batch"] = 3; });
}

TEST_CASE("a compression that means nothing is refused with its place") {
  Json json = to_json(random_profile(3, 4, 3));
  for (Json& point : json["points"]) point["device"] = "here";
  const auto refused = [&](const std::vector<std::pair<std::string, std::string>>& of) {
    Json changed = json;
    for (const auto& [device, compress] : of)
      changed["codings"].push_back(
          {{"device", device}, {"compress", compress}, {"seconds", 1e-3}, {"sent_share", 0.25}, {"num_exchanges", 1}});
    return error_or_none([&] { model_profile_from_json(changed, "f.json"); });
  };
  CHECK(refused({{"here", "int8"}, {"here", "topk:0.1"}, {"here", "powersgd:4"}, {"", "int8"}}) == "");
  CHECK(refused({{"here", "int9"}}) ==
        "f.json: codings[0]: compress=int9: no such compression (did you mean 'int8'?); one of none, fp16, bf16, int8, topk:F, powersgd:R");
  CHECK(refused({{"here", "int8"}, {"here", "topk:2"}}).starts_with("f.json: codings[1]: compress=topk:2: F in topk:F is"));
  CHECK(refused({{"here", "none"}}).find("costs nothing") != std::string::npos);
  CHECK(refused({{"here", "int8"}, {"here", "int8"}}) == "f.json: codings[1]: another entry is for device \"here\" and int8, too");
  CHECK(refused({{"there", "int8"}}) ==
        "f.json: codings[0]: 'device' is \"there\", which no point has; give the name that the points have");
  for (Json& point : json["points"]) point["device"] = "";
  CHECK(refused({{"there", "int8"}}) == "");  // Points of any device are of that one too.
}

TEST_CASE("a file of too many layers is refused at once") {
  const TemporaryFolder folder;
  const std::string path = folder / "large.json";
  const auto refused = [&](const std::string& text) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
    return error_or_none([&] { read_model_profile(path); });
  };
  const auto repeated = [](const std::string& text, size_t times) {
    std::string out;
    for (size_t i = 0; i < times; ++i) out += text;
    return out;
  };
  const std::string layers = "{\"layers\": [" + repeated("{\"name\":\"a\"},", 1'000'000);
  CHECK(refused(layers) == path + ": 1000001 JSON objects; a profile has one for each of at most 65536 layers and 4096 points");
  CHECK(refused(repeated("[],", 3'000'000)).find("3000000 lists") != std::string::npos);
  CHECK(refused(repeated("0,", 30'000'000)).find("30000001 values") != std::string::npos);
  CHECK(refused("{\"" + std::string(1'000'000, '{') + "\\\"{\": 1}").find("unknown key \"{{{") != std::string::npos);
  CHECK(refused("{\"model\": ").find("not valid JSON") != std::string::npos);
  CHECK(refused(R"({"model": "a", "model": "b"})").find("comes twice") != std::string::npos);
  CHECK(refused(std::string(100, '[')).find("nested deeper") != std::string::npos);
  std::filesystem::resize_file(path, (size_t{1} << 27) + 1);
  CHECK(error_or_none([&] { read_model_profile(path); }).find("at most 134217728 are accepted") != std::string::npos);
  CHECK(error_or_none([&] { read_model_profile(folder / "none"); }).find("none") != std::string::npos);
}

TEST_CASE("the example of the documentation is whole") {
  const std::string page = read_small_file(repository_file("docs/formats/profile.md"), size_t{1} << 20), fence = "```";
  const size_t begin = page.find(fence + "json\n") + 8;
  const ModelProfile profile = model_profile_from_json(Json::parse(page.substr(begin, page.find(fence, begin) - begin)), "example");
  CHECK(measured_micro_batches(profile, {"any", "fp32", 1, 1}) == std::vector<int64_t>{1, 16});
  check_profile(profile_at(profile, {"any", "fp32", 1, 64}));
}

TEST_CASE("examples are read") {
  const ModelProfile chain = read_model_profile(repository_file("examples/profiles/chain.json"));
  const ModelProfile branches = read_model_profile(repository_file("examples/profiles/branches.json"));
  CHECK(chain.layers.size() == 8);
  CHECK(measured_micro_batches(chain, {"", "fp32", 1, 1}) == std::vector<int64_t>{1, 4, 16});
  CHECK(has_points(branches, {"", "bf16", 2, 1}));
  CHECK(has_points(branches, {"", "fp32", 2, 1}));
  CHECK(branches.edges.size() > branches.layers.size());
  for (const ModelProfile* profile : {&chain, &branches}) {
    CHECK(profile->source.starts_with("made up"));
    for (const int64_t size : {1, 5, 64}) check_profile(profile_at(*profile, {"", "fp32", 1, size}));
    check_same(model_profile_from_json(to_json(*profile), "x"), *profile);
  }
}

/// What is accepted holds together: its own text is read back as the same, and its costs can be asked for.
bool take(const std::string& text, const std::string& path) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
  bool is_accepted = false;
  const std::string what = error_or_none([&] {
    const ModelProfile profile = read_model_profile(path);
    check_profile(profile_at(profile, {profile.points[0].device, profile.points[0].precision, profile.points[0].tp, 3}));
    const Json json = to_json(profile);
    REQUIRE(to_json(model_profile_from_json(json, "again")) == json);
    is_accepted = true;
  });
  REQUIRE(is_accepted == what.empty());
  return is_accepted;
}

TEST_CASE("mutation: model profiles, damaged and cut off") {
  const uint64_t times = mutation_count(20'000);  // 1,000,000 takes minutes.
  const MemoryFolder folder;
  const std::string path = folder / "p.json";
  const Profile old{"m",  8,  {{"a", "linear", 1, 2, 3, 400, 50, 60, OutputKept::kByItself}, {"b", "relu"}}, {{-1, 0}, {0, 1}}, {},
                    1e-6, 1e9};
  const std::vector<std::string> wholes = {to_json(random_profile(5, 3, 2)).dump(), to_json(old).dump()};
  for (const std::string& whole : wholes) {
    for (size_t length = 0; length < whole.size(); ++length) REQUIRE_FALSE(take(whole.substr(0, length), path));
    REQUIRE(take(whole, path));
  }
  uint64_t accepted = 0;
  for (uint64_t seed = 1; seed <= times; ++seed) accepted += take(mutated(wholes[seed % 4 == 0], seed), path) ? 1 : 0;
  CHECK(accepted > times / 50);
  CHECK(times - accepted > times / 4);
}

}  // namespace
}  // namespace cohort
