#include "cohort/base/hmac.h"

#include <doctest/doctest.h>

#include <set>

namespace cohort {
namespace {

std::string hex(const Digest& digest) { return hexadecimal(bytes_of(digest)); }

TEST_CASE("sha256: FIPS 180-4's examples, and lengths around the end of a block") {
  CHECK(hex(sha256("")) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(hex(sha256("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")) ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(hex(sha256(std::string(1000000, 'a'))) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  CHECK(hex(sha256(std::string(55, 'a'))) == "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
  CHECK(hex(sha256(std::string(56, 'a'))) == "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a");
  CHECK(hex(sha256(std::string(64, 'a'))) == "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
}

TEST_CASE("hmac: RFC 4231's examples") {
  CHECK(hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")) == "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(hex(hmac_sha256("Jefe", "what do ya want for nothing?")) == "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(hex(hmac_sha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")) ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
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
