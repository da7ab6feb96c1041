#include "cohort/base/text/strict_json.h"

#include <doctest/doctest.h>

#include <string>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "tests/support/errors.h"
#include "tests/support/mutation.h"
#include "tests/support/text.h"

using namespace cohort;

namespace {

std::string refusal(const std::string& text) {
  const std::string said = error_or_none([&] { parse_strict_json(text, {.path = "file.json", .first_byte = 8}); });
  CHECK((said.empty() || said.starts_with("file.json: ")));
  return said;
}

}  // namespace

TEST_CASE("strict JSON accepts what is JSON and keeps the order where asked") {
  CHECK(parse_strict_json(" {\"b\":[1,{\"b\":2}],\"a\":{\"b\":null}} ", {.path = "x"})["b"][1]["b"] == 2);
  CHECK(parse_strict_ordered_json("{\"b\":1,\"a\":2}", {.path = "x"}).dump() == "{\"b\":1,\"a\":2}");
}

TEST_CASE("strict JSON refuses with file, place and reason") {
  CHECK(contains(refusal("{\"a\":1,}"), "byte 15"));
  CHECK(contains(refusal(""), "not valid JSON"));
  CHECK(contains(refusal("{} x"), "not valid JSON"));
  CHECK(contains(refusal("{\"a\":1,\"a\":2}"), "key \"a\" comes twice"));
  CHECK(contains(refusal("{\"o\":{\"a\":1,\"b\":{},\"a\":2}}"), "comes twice"));
  CHECK(contains(refusal("{\"a\":1e999}"), "not valid JSON"));
  CHECK(contains(refusal("\"\xff\""), "not valid JSON"));
  CHECK(contains(refusal(std::string(1'000'000, '[')), "deeper than 32"));
  CHECK(refusal("\"" + std::string(100'000, 'x')).size() < 300);
  CHECK(refusal(std::string(31, '[') + "[]" + std::string(31, ']')) == "");
}

TEST_CASE("strict JSON builds what nlohmann's own parser builds, or refuses") {
  const std::string whole =
      R"({"a": [1, -2, 3.5, true, null, "x\u00e9\n", [], {}], "b": {"c": [[{"d": 18446744073709551615}], 2], "a": {"e": "f"}}, "g": -0.0})";
  int accepted = 0, refused = 0;
  for (uint64_t seed = 0; seed <= 5000; ++seed) {
    const std::string text = seed == 0 ? whole : mutated(whole, seed);
    const Json expected = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    try {
      const Json ordered = parse_strict_ordered_json(text, {.path = "x"});
      CHECK_MESSAGE(ordered.dump() == expected.dump(), text);
      CHECK_MESSAGE(parse_strict_json(text, {.path = "x"}) == nlohmann::json::parse(text), text);
      ++accepted;
    } catch (const Error& error) {
      CHECK_MESSAGE((expected.is_discarded() || contains(error.what(), "comes twice")), text);
      ++refused;
    }
  }
  CHECK(accepted > 100);
  CHECK(refused > 2000);
  // A list of many objects: as long as it is, not its square.
  std::string many = "[{}";
  for (int i = 1; i < 300'000; ++i) many += ",{}";
  CHECK(parse_strict_ordered_json(many + "]", {.path = "x"}).size() == 300'000);
}

TEST_CASE("quote_text shows any bytes as one short line") {
  CHECK(quote_text("a b") == "\"a b\"");
  CHECK(quote_text("a\n\x80") == "\"a\\x0a\\x80\"");
  CHECK(quote_text(std::string(500, 'x')).size() == 105);
}
