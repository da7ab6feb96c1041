// With the count of memory (comm/shm/memory_count.h), which also wraps LibTorch's allocator.

#include "cohort/parallel/one_copy/gradient_memory.h"

#include <ATen/ops/empty.h>
#include <doctest/doctest.h>

#include "cohort/base/fail.h"
#include "cohort/comm/shm/memory_count.h"
#include "cohort/testing/shm_ranks.h"

namespace cohort {
namespace {

void require_held(int64_t bytes, const char* when) {
  if (counted_memory_bytes() != bytes) throw std::runtime_error(concat(when, ": ", counted_memory_bytes(), " held, expected ", bytes));
}

TEST_CASE("a counting, limiting allocator below: blocks of the arena and all others count once, and the limit holds for both") {
  const ForkedRanks ranks(1, 20, [](ShmTransport& transport) -> std::string {
    limit_memory(0);
    const int64_t start = counted_memory_bytes();
    at::Tensor outlives;
    {
      const GradientMemory memory(transport.arena(), {8192});
      at::Tensor gradient = at::empty({2048}, at::kFloat), other = at::empty({1000}, at::kFloat);
      size_t offset = 0;
      if (!transport.arena()->offset_of(gradient.data_ptr(), 8192, &offset)) throw std::runtime_error("not in the arena");
      require_held(start + 8192 + 4000, "a gradient and another tensor");
      other.reset();
      gradient.reset();
      require_held(start + 8192, "the block waits to be used again");
      gradient = at::empty({2048}, at::kFloat);
      require_held(start + 8192, "and is");
      limit_memory(counted_memory_bytes() + 5000);
      for (const int64_t elements : {2048, 1500}) {  // From the arena; from LibTorch.
        try {
          at::empty({elements}, at::kFloat);
          throw std::runtime_error("not refused");
        } catch (const Error&) {
        }
      }
      limit_memory(0);
      outlives = at::empty({1000}, at::kFloat);
    }
    outlives.reset();
    return "done";
  });
  CHECK(ranks.report(0) == "done");  // A rank that is killed says nothing.
}

}  // namespace
}  // namespace cohort
