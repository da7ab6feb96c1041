#include "cohort/comm/nccl.h"

#include <doctest/doctest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "cohort/base/fail.h"
#include "tests/support/skip.h"

namespace cohort {
namespace {

TEST_CASE("without NCCL or a GPU a sentence names the way out") {
  const std::shared_ptr<const DeviceLink> link = make_nccl_link(c10::Device(c10::DeviceType::CUDA, 0));
  CHECK(link->device == c10::Device(c10::DeviceType::CUDA, 0));
  const std::string why = link->why_not;
  CHECK(why.empty() == !link->identity.empty());
  if (!why_no_nccl().empty()) CHECK(why == why_no_nccl());
  if (why.empty()) return skip_test("NCCL and a GPU are here: nothing is to be refused", /*also_in_ci=*/true);
  CHECK(why.find("--backend gloo") != std::string::npos);
  try {
    link->make(c10::make_intrusive<c10d::HashStore>(), 0, 1, 5);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kEnvironment);
    CHECK(error.what() == why);
  }
}

}  // namespace
}  // namespace cohort
