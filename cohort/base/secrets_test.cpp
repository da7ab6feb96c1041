#include "cohort/base/secrets.h"

#include <doctest/doctest.h>

#include <set>

namespace cohort {
namespace {

TEST_CASE("hmac: RFC 4231's examples") {
  const auto hex = [](const std::string& key, const std::string& message) { return hexadecimal(hmac_sha256(key, message)); };
  CHECK(hex(std::string(20, '\x0b'), "Hi There") == "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(hex("Jefe", "what do ya want for nothing?") == "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(hex(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First") ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST_CASE("derived keys: RFC 5869's example without salt, another for each secret and use") {
  CHECK(hexadecimal(derived_key(std::string(22, '\x0b'), "")) == "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d");
  CHECK(derived_key("a secret", "names") == derived_key("a secret", "names"));
  CHECK(derived_key("a secret", "names") != derived_key("a secret", "values"));
  CHECK(derived_key("a secret", "names") != derived_key("b secret", "names"));
}

TEST_CASE("a sealed text comes back with its key and its name alone, whole, and looks different each time") {
  const std::string key = derived_key("a secret", "test"), other = derived_key("b secret", "test");
  for (const size_t length : {0, 1, 15, 16, 17, 64, 1000}) {
    const std::string text(length, 'x'), sealed = seal(key, "name", text);
    CHECK(sealed.size() == length + kSealBytes);
    CHECK(unseal(key, "name", sealed) == text);
    CHECK(seal(key, "name", text) != sealed);
    CHECK_FALSE(unseal(other, "name", sealed));
    CHECK_FALSE(unseal(key, "nam", sealed));
    for (size_t i = 0; i < sealed.size(); ++i) {
      std::string changed = sealed;
      changed[i] = static_cast<char>(changed[i] ^ 1);
      CHECK_FALSE(unseal(key, "name", changed));
    }
    CHECK_FALSE(unseal(key, "name", sealed.substr(1)));
  }
  CHECK_FALSE(unseal(key, "name", ""));
}

TEST_CASE("secrets: equal or not, and never twice the same") {
  CHECK(equal_secrets("", ""));
  CHECK(equal_secrets("a secret", "a secret"));
  CHECK_FALSE(equal_secrets("a secret", "a secreT"));
  CHECK_FALSE(equal_secrets("a secret", "a secret "));
  CHECK(secret_bytes(32).size() == 32);
  std::set<std::string> drawn;
  for (int i = 0; i < 100; ++i) drawn.insert(secret_bytes(16));
  CHECK(drawn.size() == 100);
  CHECK(hexadecimal(std::string("\x00\xff\x1a", 3)) == "00ff1a");
}

}  // namespace
}  // namespace cohort
