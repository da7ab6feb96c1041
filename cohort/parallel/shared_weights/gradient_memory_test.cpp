// With the count of memory (comm/shm/memory_count.h), which also wraps LibTorch's allocator.

#include "cohort/parallel/shared_weights/shared_data_parallel_state.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <set>

#include "cohort/base/fail.h"
#include "cohort/comm/shm/memory_count.h"
#include "cohort/parallel/watch/backward_watch.h"
#include "tests/support/shm_ranks.h"

namespace cohort {
namespace {

void require_held(int64_t bytes, const char* when) {
  if (counted_memory_bytes() != bytes) throw std::runtime_error(concat(when, ": ", counted_memory_bytes(), " held, expected ", bytes));
}

/// A node in front of a parameter that allocates, and has no gradient for it.
struct Allocates : torch::autograd::Function<Allocates> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& input) { return input.sum(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list& /*gradients*/) {
    made = at::empty({elements}, at::kFloat);
    return {at::Tensor()};
  }
  static thread_local int64_t elements;
  static thread_local at::Tensor made;
};
thread_local int64_t Allocates::elements = 0;
thread_local at::Tensor Allocates::made;

at::Tensor parameter_of(int64_t elements) { return at::zeros({elements}, at::kFloat).set_requires_grad(true); }

at::Tensor in_backward(const at::Tensor& parameter, int64_t elements) {
  Allocates::elements = elements;
  Allocates::apply(parameter).backward();
  return std::move(Allocates::made);
}

TEST_CASE("what the node in front of a parameter allocates, of its size and in backward(), has a block; nothing else of that size has") {
  const ForkedRanks ranks(1, 20, [](ShmTransport& transport) -> std::string {
    const BackwardWatch watch{{}};
    const at::Tensor weight = parameter_of(2048), second = parameter_of(2048), strange = parameter_of(2048), small = parameter_of(25);
    GradientMemory memory(transport.arena(), {weight, second, small});
    size_t offset = 0;
    const auto require = [&](bool shared, const at::Tensor& tensor, const char* what) {
      if (transport.arena()->offset_of(tensor.data_ptr(), tensor.nbytes(), &offset) != shared) throw std::runtime_error(what);
    };
    require(false, at::empty({2048}, at::kFloat), "an activation's");
    require(true, in_backward(weight, 2048), "a parameter's");
    require(true, in_backward(weight.view({32, 64}).t(), 2048), "seen through views");
    require(true, in_backward(second, 2048), "another parameter's");
    require(false, in_backward(strange, 2048), "of a parameter of somebody else's");
    require(false, in_backward(at::mul(weight, strange), 2048), "of a product");
    require(false, in_backward(weight, 2000), "of another size");
    require(false, in_backward(small, 25), "small");
    Allocates::elements = 2048;
    torch::autograd::grad({Allocates::apply(weight)}, {weight}, {}, false, false, /*allow_unused=*/true);
    require(false, std::move(Allocates::made), "of torch::autograd::grad()");
    return "done";
  });
  CHECK(ranks.report(0) == "done");
}

TEST_CASE("kept gradients: twice as many blocks as parameters and two, always room for a copy, and memory is given back") {
  const ForkedRanks ranks(1, 20, [](ShmTransport& transport) -> std::string {
    const at::Tensor weight = parameter_of(2048), second = parameter_of(2048);
    GradientMemory memory(transport.arena(), {weight, second});
    std::set<const void*> places;
    for (int round = 0; round < 3; ++round) {
      size_t offset = 0;
      std::vector<at::Tensor> kept;
      for (int i = 0; i < 8; ++i) {
        kept.push_back(in_backward(weight, 2048));
        if (transport.arena()->offset_of(kept.back().data_ptr(), 8192, &offset) != (i < 6))
          throw std::runtime_error(concat("gradient ", i, " of those that are kept"));
      }
      kept.push_back(memory.empty_like(second));
      if (!transport.arena()->offset_of(kept.back().data_ptr(), 8192, &offset) || memory.bytes() != 7 * 8192)
        throw std::runtime_error("no room for a copy");
      kept.erase(kept.begin() + 6, kept.begin() + 8);
      for (const at::Tensor& tensor : kept) places.insert(tensor.fill_(1).data_ptr());
      kept.clear();
      if (memory.bytes() != 4 * 8192) throw std::runtime_error("memory was not given back");
    }
    return places.size() == 7 ? "done" : concat(places.size(), " places");
  });
  CHECK(ranks.report(0) == "done");
}

TEST_CASE("a counting, limiting allocator below: blocks of the arena and all others count once, and the limit holds for both") {
  const ForkedRanks ranks(1, 20, [](ShmTransport& transport) -> std::string {
    limit_memory(0);
    const at::Tensor weight = parameter_of(2048), large = parameter_of(4096);
    const int64_t start = counted_memory_bytes();
    at::Tensor outlives;
    {
      GradientMemory memory(transport.arena(), {weight, large});
      at::Tensor gradient = in_backward(weight, 2048), other = in_backward(weight, 1000);
      size_t offset = 0;
      if (!transport.arena()->offset_of(gradient.data_ptr(), 8192, &offset)) throw std::runtime_error("not in the arena");
      require_held(start + 8192 + 4000, "a gradient and another tensor");
      other.reset();
      gradient.reset();
      require_held(start + 8192, "the block waits to be used again");
      gradient = in_backward(weight, 2048);
      require_held(start + 8192, "and is");
      limit_memory(counted_memory_bytes() + 5000);
      gradient.reset();
      for (const int64_t elements : {4096, 1500}) {  // From the arena; from LibTorch.
        try {
          in_backward(large, elements);
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
