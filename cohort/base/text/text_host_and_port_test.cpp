#include "cohort/base/text/text.h"

#include <doctest/doctest.h>

#include "cohort/base/error.h"

using namespace cohort;

TEST_CASE("host and port: names and addresses are read, anything else is refused") {
  CHECK(parse_host_and_port("node1:29400", "--listen").host == "node1");
  CHECK(parse_host_and_port("node1:29400", "--listen").port == 29400);
  CHECK(parse_host_and_port("[::1]:0", "--listen").host == "::1");
  for (const char* text : {"", ":", "node1", "node1:", ":29400", "node1:65536", "node1:-1", "node1:x", "::1:29400", "[]:1", "a/b:1",
                           "a b:1", "tcp://a:1", "node1:99999999999999999999"})
    CHECK_THROWS_WITH_AS(parse_host_and_port(text, "--listen"), doctest::Contains("expected HOST:PORT"), Error);
}
