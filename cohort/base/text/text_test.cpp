#include "cohort/base/text/text.h"

#include <doctest/doctest.h>

namespace cohort {
namespace {

TEST_CASE("printable text keeps what is text and nothing else") {
  CHECK(printable("a\tb\nc") == "a\tb\nc");
  CHECK(printable("gr\xc3\xb6\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80") == "gr\xc3\xb6\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80");
  CHECK(printable("\x1b[31mred\x7f\r") == "?[31mred??");
  CHECK(printable("\xf6 \xc3( \xc0\x80 \xe2\x82") == "? ?( ?? ??");
  CHECK(printable("\xed\xa0\x80") == "???");  // A surrogate.
  CHECK(printable("\xc2\x9b") == "??");       // The one-byte escape sequence introducer of some terminals.
}

TEST_CASE("numbers must be the whole text") {
  CHECK(parse_integer("42") == 42);
  CHECK(parse_integer("-7") == -7);
  for (const char* text : {"", " 1", "1 ", "1x", "9999999999999999999", "0x10", "1.0"}) CHECK_FALSE(parse_integer(text).has_value());
  CHECK(parse_number("1e-3") == 1e-3);
  for (const char* text : {"", "nan", "inf", "1e999", "1,5"}) CHECK_FALSE(parse_number(text).has_value());
}

TEST_CASE("splitting, joining, trimming") {
  CHECK(split("a,,b", ',') == std::vector<std::string>{"a", "", "b"});
  CHECK(split("", ',').empty());
  CHECK(join({"a", "b"}, ", ") == "a, b");
  CHECK(trim(" \t a b\r\n") == "a b");
  CHECK(first_line("a b\nc\nd") == "a b");
  CHECK(first_line("a b") == "a b");
  for (const char* text : {"", "\n", "\na"}) CHECK(first_line(text).empty());
}

TEST_CASE("the nearest name, where one is near") {
  const std::vector<std::string> names = {"train", "verify", "lr", "resnet8", "resnet50"};
  CHECK(nearest_name("tarin", names) == "train");
  CHECK(nearest_name("resnet5", names) == "resnet8");
  CHECK(nearest_name("a", names).empty());
  CHECK(nearest_name("carrier-pigeon", names).empty());
  CHECK(did_you_mean("verfy", names) == " (did you mean 'verify'?)");
}

TEST_CASE("numbers for people") {
  CHECK(with_commas(0) == "0");
  CHECK(with_commas(-1234567) == "-1,234,567");
  CHECK(with_commas(999) == "999");
  CHECK(human_bytes(1536) == "1.5 KiB");
  CHECK(human_seconds(192.4) == "3 min 12 s");
  CHECK(human_seconds(0.0123) == "12.3 ms");
}

}  // namespace
}  // namespace cohort
