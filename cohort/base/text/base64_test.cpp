#include "cohort/base/text/base64.h"

#include <doctest/doctest.h>

namespace cohort {

TEST_CASE("base64: the vectors of RFC 4648, section 10, and all bytes there and back") {
  for (const auto& [bytes, text] : {std::pair("", ""), std::pair("f", "Zg=="), std::pair("fo", "Zm8="), std::pair("foo", "Zm9v"),
                                    std::pair("foob", "Zm9vYg=="), std::pair("fooba", "Zm9vYmE="), std::pair("foobar", "Zm9vYmFy")}) {
    CHECK(to_base64(bytes) == text);
    CHECK(from_base64(text) == bytes);
  }
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  for (size_t cut = 0; cut < 4; ++cut) CHECK(from_base64(to_base64(all.substr(cut))) == all.substr(cut));
}

TEST_CASE("base64: what to_base64() does not make is refused") {
  for (const char* text : {"Z", "Zg", "Zg=", "Zh==", "Zm9", "Zm9v=", "====", "=", "Zm 9v", "Zm9v\n", "Zm9-", "Zg==Zg==", "\"><b>"})
    CHECK_FALSE(from_base64(text).has_value());
}

}  // namespace cohort
