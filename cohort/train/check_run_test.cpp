#include "cohort/train/check_run.h"

#include <doctest/doctest.h>

#include <string>

#include "cohort/base/error.h"

namespace cohort {
namespace {

/// What check_run() says of two workers with that layout on that device; "" where they may start.
std::string refusal(const std::string& layout, const std::string& device) {
  Config config;
  config.model = "fc";
  config.device = device;
  try {
    check_run(config, parse_layout(layout, 2), 2);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kBadInput);
    return error.what();
  }
  return "";
}

TEST_CASE("every ZeRO stage may run on a GPU; what works in host memory alone is refused with what to use instead") {
  for (const char* const layout : {"dp=2", "dp=2,zero=1", "dp=2,zero=2", "dp=2,zero=3"}) {
    CHECK(refusal(layout, "cpu") == "");
    CHECK(refusal(layout, "cuda") == "");
  }
  CHECK(refusal("dp=2,compress=int8", "cpu") == "");
  CHECK(refusal("dp=2,compress=int8", "cuda").find("use compress=none, or --device cpu") != std::string::npos);
  CHECK(refusal("pp=2,zero=1", "cuda").find("with pp or tp is not supported") != std::string::npos);
}

}  // namespace
}  // namespace cohort
