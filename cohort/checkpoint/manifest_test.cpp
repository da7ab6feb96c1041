#include "cohort/checkpoint/manifest.h"

#include <doctest/doctest.h>

#include <string>

#include "tests/support/checkpoint_files.h"
#include "tests/support/mutation.h"
#include "tests/support/text.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

using namespace cohort;
using namespace cohort::testing;

namespace {

std::vector<ShardInfo> sample_shards() {
  ShardInfo a{"rank-00000.safetensors", 200, 0x0123456789abcdef, {{"model/w", DType::kF32, {4, 3}, {0, 0}, {1, 3}, "model/w"}}};
  ShardInfo b{"rank-00001.safetensors",
              300,
              5,
              {{"model/w", DType::kF32, {4, 3}, {1, 0}, {3, 3}, "model/w"}, {"n\"\xc3\xbc", DType::kI64, {}, {}, {}, "other"}}};
  return {a, b};
}

std::string sample_text() {
  const Manifest manifest{12, Json{{"seed", 1}, {"aliases", {{"a", "b"}}}}, sample_shards()};
  return manifest_text(manifest, index_tensors(manifest.shards, "x"));
}

/// Gives a changed text the checksum that belongs to it, so that the checks behind the checksum are reached.
std::string sealed(std::string body) { return body + ",\"xxh64\":\"" + checksum_text(XXH64(body.data(), body.size(), 0)) + "\"}\n"; }

std::string body_of(const std::string& text) { return text.substr(0, text.rfind(",\"xxh64\"")); }

std::string refusal(const std::string& text) {
  TensorIndex index;
  return error_or_none([&] { parse_manifest(text, "m.json", &index); });
}

std::string refusal_with(const std::string& from, const std::string& to) {
  std::string body = body_of(sample_text());
  const size_t at = body.find(from);
  REQUIRE(at != std::string::npos);
  return refusal(sealed(body.replace(at, from.size(), to)));
}

}  // namespace

TEST_CASE("a manifest is JSON that reads back as it was") {
  const std::string text = sample_text();
  const Json json = Json::parse(text);
  CHECK(json["format"] == "cohort-checkpoint");
  CHECK(json["files"][0]["xxh64"] == "0123456789abcdef");
  CHECK(json["tensors"][0]["name"] == "model/w");
  CHECK(json["tensors"][0]["pieces"][1]["begin"] == Json::array({1, 0}));
  TensorIndex index;
  const Manifest manifest = parse_manifest(text, "m.json", &index);
  CHECK(manifest.step == 12);
  CHECK(manifest.state == Json{{"seed", 1}, {"aliases", {{"a", "b"}}}});
  REQUIRE(manifest.shards.size() == 2);
  CHECK(index.at("model/w").boxes.size() == 2);
  CHECK(manifest.shards[1].pieces[1].entry == "other");
  CHECK(manifest_text(manifest, index) == text);
}

TEST_CASE("shard descriptions travel as JSON, damaged ones are refused") {
  for (const ShardInfo& shard : sample_shards()) CHECK(to_json(shard_from_json(Json::parse(to_json(shard).dump()))) == to_json(shard));
  const Json good = to_json(sample_shards()[1]);
  const std::pair<const char*, Json> changes[] = {{"/file", "../a.safetensors"},
                                                  {"/file", 1},
                                                  {"/bytes", -1},
                                                  {"/bytes", 1.5},
                                                  {"/xxh64", "5"},
                                                  {"/pieces", "x"},
                                                  {"/pieces/0", 3},
                                                  {"/pieces/0/dtype", "F31"},
                                                  {"/pieces/0/begin", {2, 0}},
                                                  {"/pieces/0/begin", {0}},
                                                  {"/pieces/0/shape/0", -1},
                                                  {"/pieces/0/tensor", nullptr}};
  for (const auto& [pointer, value] : changes) {
    Json bad = good;
    bad[Json::json_pointer(pointer)] = value;
    CHECK_MESSAGE(error_or_none([&] { shard_from_json(bad); }) != "", pointer);
  }
  CHECK(contains(error_or_none([&] { shard_from_json(Json::array()); }), "expected an object"));
}

TEST_CASE("a manifest that lies is refused with what it lies about") {
  CHECK(contains(refusal(""), "0 bytes, too few"));
  CHECK(contains(refusal(sample_text() + "\n"), "checksum"));
  CHECK(contains(refusal(body_of(sample_text())), "checksum"));
  CHECK(contains(refusal(sealed("{\"a\":1")), "\"format\" is missing"));
  CHECK(contains(refusal(sealed("[1")), "not valid JSON"));
  CHECK(contains(refusal_with("cohort-checkpoint", "other"), "expected \"cohort-checkpoint\""));
  CHECK(contains(refusal_with("\"version\":1", "\"version\":2"), "version 2, this program reads version 1"));
  CHECK(contains(refusal_with("\"step\":12", "\"step\":-12"), "expected a whole number"));
  CHECK(contains(refusal_with("\"step\":12", "\"step\":12,\"step\":13"), "comes twice"));
  CHECK(contains(refusal_with("\"state\":", "\"other\":"), "\"state\" is missing"));
  CHECK(contains(refusal_with("\"name\":\"rank-00000.safetensors\"", "\"name\":\"../x.safetensors\""), "is not listed"));
  CHECK(contains(refusal_with("rank-00000.safetensors\",\"begin", "rank-00007.safetensors\",\"begin"),
                 "\"rank-00007.safetensors\" is not listed"));
  CHECK(contains(refusal_with("\"shape\":[4,3]", "\"shape\":[5,3]"), "tensor \"model/w\": the pieces hold 12 of 15"));
  CHECK(contains(refusal_with("\"shape\":[4,3]", "\"shape\":[3,3]"), "leaves the tensor"));
  CHECK(contains(refusal_with("\"shape\":[4,3]", "\"shape\":[4611686018427387904,3]"), "more than 2^63-1 bytes"));
  CHECK(contains(refusal_with("\"begin\":[1,0]", "\"begin\":[0,0]"), "overlap"));
  CHECK(contains(refusal_with("\"begin\":[1,0]", "\"begin\":[9223372036854775807,0]"), "leaves the tensor"));
  CHECK(contains(refusal_with("\"dtype\":\"F32\"", "\"dtype\":\"F33\""), "\"F33\" is not one of"));
  CHECK(contains(refusal_with("0123456789abcdef", "0123456789ABCDEF"), "expected 16 hexadecimal digits"));
  CHECK(contains(refusal_with("\"seed\":1", "\"seed\":" + std::string(100, '[') + std::string(100, ']')), "deeper than 64"));
  // The same name in both lists, so that the look-up succeeds.
  const auto renamed = [](const std::string& name) {
    std::string body = body_of(sample_text());
    for (size_t at; (at = body.find("rank-00000")) != std::string::npos;) body.replace(at, 10, name);
    return sealed(body);
  };
  CHECK(contains(refusal(renamed("../../etc")), "\"../../etc.safetensors\" is not one of a shard"));
  CHECK(contains(refusal(renamed("rank-00001")), "file \"rank-00001.safetensors\" comes twice"));
}

TEST_CASE("truncated and damaged manifests are refused; behind a right checksum they are refused or harmless") {
  const std::string text = sample_text(), body = body_of(text);
  for (size_t size = 0; size < text.size(); ++size) CHECK(refusal(text.substr(0, size)) != "");
  for (size_t size = 0; size < body.size(); ++size) CHECK(refusal(sealed(body.substr(0, size))) != "");
  int accepted = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    const std::string bad = mutated(text, seed);
    if (bad != text) CHECK(refusal(bad) != "");
    accepted += refusal(sealed(mutated(body, seed))) == "";
  }
  CHECK(accepted > 0);
  CHECK(accepted < 2000);
}
