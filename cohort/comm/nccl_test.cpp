#include "cohort/comm/nccl.h"

#include <doctest/doctest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "cohort/base/error.h"

namespace cohort {
namespace {

TEST_CASE("without NCCL or a GPU a sentence names the way out") {
  const std::string why = why_no_nccl();
  if (why.empty()) return;  // Tested on GPUs by tests that need several of them.
  CHECK(why.find("--backend gloo") != std::string::npos);
  try {
    make_nccl_backend(c10::make_intrusive<c10d::HashStore>(), 0, 1, 5);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kEnvironment);
    CHECK(error.what() == why);
  }
}

}  // namespace
}  // namespace cohort
