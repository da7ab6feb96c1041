// With the count of memory (comm/shm/memory_count.h), which also wraps LibTorch's allocator.

#include "cohort/parallel/one_copy/gradient_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/custom_function.h>

#include "cohort/base/fail.h"
#include "cohort/comm/shm/memory_count.h"
#include "cohort/testing/shm_ranks.h"

namespace cohort {
namespace {

void require_held(int64_t bytes, const char* when) {
  if (counted_memory_bytes() != bytes) throw std::runtime_error(concat(when, ": ", counted_memory_bytes(), " held, expected ", bytes));
}

/// What a node of autograd allocates.
struct Allocates : torch::autograd::Function<Allocates> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& input) { return input.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/, torch::autograd::variable_list gradients) {
    made = at::empty({elements}, at::kFloat);
    return gradients;
  }
  static thread_local int64_t elements;
  static thread_local at::Tensor made;
};
thread_local int64_t Allocates::elements = 0;
thread_local at::Tensor Allocates::made;

at::Tensor in_backward(at::IntArrayRef sizes) {
  Allocates::elements = sizes[0];
  const at::Tensor input = at::zeros({1}, at::kFloat).set_requires_grad(true);
  Allocates::apply(input).sum().backward();
  return std::move(Allocates::made);
}

TEST_CASE("a block a parameter, inside of backward alone: other tensors of that size stay where they would be") {
  const ForkedRanks ranks(1, 20, [](ShmTransport& transport) -> std::string {
    GradientMemory memory(transport.arena(), {8192, 8192, 100});
    size_t offset = 0;
    const auto is_shared = [&](const at::Tensor& tensor) {
      return transport.arena()->offset_of(tensor.data_ptr(), tensor.nbytes(), &offset);
    };
    if (is_shared(at::empty({2048}, at::kFloat))) throw std::runtime_error("an activation's");
    at::Tensor first = in_backward({2048}), second = in_backward({2048}), third = in_backward({2048});
    if (!is_shared(first) || !is_shared(second) || is_shared(third)) throw std::runtime_error("not two of three");
    if (memory.empty_like(third).defined()) throw std::runtime_error("more than two");
    first.reset();
    const at::Tensor again = memory.empty_like(third);
    if (!again.defined() || !is_shared(again) || memory.bytes() != 2 * 8192) throw std::runtime_error("not used again");
    return "done";
  });
  CHECK(ranks.report(0) == "done");
}

TEST_CASE("a counting, limiting allocator below: blocks of the arena and all others count once, and the limit holds for both") {
  const ForkedRanks ranks(1, 20, [](ShmTransport& transport) -> std::string {
    limit_memory(0);
    const int64_t start = counted_memory_bytes();
    at::Tensor outlives;
    {
      GradientMemory memory(transport.arena(), {8192, 16384});
      at::Tensor gradient = in_backward({2048}), other = in_backward({1000});
      size_t offset = 0;
      if (!transport.arena()->offset_of(gradient.data_ptr(), 8192, &offset)) throw std::runtime_error("not in the arena");
      require_held(start + 8192 + 4000, "a gradient and another tensor");
      other.reset();
      gradient.reset();
      require_held(start + 8192, "the block waits to be used again");
      gradient = in_backward({2048});
      require_held(start + 8192, "and is");
      limit_memory(counted_memory_bytes() + 5000);
      gradient.reset();
      for (const int64_t elements : {4096, 1500}) {  // From the arena; from LibTorch.
        try {
          in_backward({elements});
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
