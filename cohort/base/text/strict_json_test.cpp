#include "cohort/base/text/strict_json.h"

#include <doctest/doctest.h>

#include <string>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/testing/text.h"

using namespace cohort;

namespace {

std::string refusal(const std::string& text) {
  try {
    parse_strict_json(text, {.path = "file.json", .first_byte = 8});
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kBadInput);
    CHECK(std::string(error.what()).rfind("file.json: ", 0) == 0);
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
    return error.what();
  }
  return "accepted";
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
  CHECK(refusal(std::string(31, '[') + "[]" + std::string(31, ']')) == "accepted");
}

TEST_CASE("quote_text shows any bytes as one short line") {
  CHECK(quote_text("a b") == "\"a b\"");
  CHECK(quote_text("a\n\x80") == "\"a\\x0a\\x80\"");
  CHECK(quote_text(std::string(500, 'x')).size() == 105);
}
