#include "cohort/job/specs/virtual_spec.h"

#include <doctest/doctest.h>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

TEST_CASE("--virtual: every key is read") {
  const VirtualSpec spec =
      parse_virtual("workers=64,speed=lognormal:0.3,link=1ms:1Gbit,mtbf=600,restart=20,compute=5ms,pauses=10:2s,slow=3:4,slow=5:2");
  CHECK(spec.workers == 64);
  CHECK(spec.speed_sigma == 0.3);
  CHECK(spec.latency_seconds == 0.001);
  CHECK(spec.bytes_per_second == 125e6);
  CHECK(spec.mtbf_seconds == 600);
  CHECK(spec.restart_seconds == 20);
  CHECK(spec.compute_seconds == 0.005);
  CHECK(spec.pause_every_seconds == 10);
  CHECK(spec.pause_seconds == 2);
  REQUIRE(spec.slow.size() == 2);
  CHECK(spec.slow[1] == std::pair(5, 2.0));
  CHECK(parse_virtual("workers=2").bytes_per_second == 0);
}

TEST_CASE("--virtual: written as it is read") {
  for (const char* text :
       {"workers=64,speed=lognormal:0.3,slow=3:4,slow=5:2,pauses=10:2,link=1000us:1Gbit,mtbf=600,restart=20,compute=0.005",
        "workers=3,slow=0:1.5,link=25us:56Mbit", "workers=1"}) {
    CHECK(to_text(parse_virtual(text)) == text);
    CHECK(parse_virtual(to_text(parse_virtual(text))) == parse_virtual(text));
  }
}

TEST_CASE("--virtual: a measured time is given again") {
  const std::string text = with_compute_seconds("workers=2", 0.00123456);
  CHECK(text == "workers=2,compute=0.00123");
  CHECK(parse_virtual(text).compute_seconds == 0.00123);
}

TEST_CASE("--virtual: what is malformed is refused") {
  for (const char* text : {"",
                           "workers",
                           "workers=",
                           "workers=0",
                           "workers=-1",
                           "workers=1e3",
                           "workers=99999999999999999999",
                           "workers=4,workers=4",
                           "speed=even",
                           "workers=4,sped=even",
                           "workers=4,speed=normal:1",
                           "workers=4,speed=lognormal:-1",
                           "workers=4,speed=lognormal:nan",
                           "workers=4,speed=lognormal",
                           "workers=4,link=1ms",
                           "workers=4,link=1ms:1Gbit:2",
                           "workers=4,link=1:1",
                           "workers=4,link=1ms:0Gbit",
                           "workers=4,link=1ms:nanGbit",
                           "workers=4,link=-1ms:1Gbit",
                           "workers=4,mtbf=0",
                           "workers=4,mtbf=nan",
                           "workers=4,mtbf=inf",
                           "workers=4,restart=3",
                           "workers=4,mtbf=3,restart=-1",
                           "workers=4,compute=0",
                           "workers=4,compute=1h",
                           "workers=4,pauses=1",
                           "workers=4,pauses=0:1",
                           "workers=4,slow=4:2",
                           "workers=4,slow=1:0.5",
                           "workers=4,slow=1",
                           "workers=4,slow=1:2,slow=1:3",
                           "workers=4,serve=newest",
                           "workers=4,keep=merge",
                           "workers=4,,speed=even",
                           "workers=4,"})
    CHECK_THROWS_AS_MESSAGE(parse_virtual(text), Error, text);
}

}  // namespace
}  // namespace cohort
