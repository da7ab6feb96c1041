// The exchanges of tensor parallelism as operations of autograd.
//
// Six linear operations in three pairs; the backward of each is the other of its pair, so all can be differentiated any number of times.
// P ranks, N bytes of the whole tensor (the joined one where it is divided):
//
//   copy_to_ranks      nothing                    <->  sum_over_ranks   one all-reduce of N
//   gather_from_ranks  one all-gather, N/P each   <->  slice_for_rank   nothing
//   gather_with_sum    one all-gather, N/P each   <->  sum_and_slice    one reduce-scatter of N
//
// Sums go in rank order, so a tensor that is "the same on all ranks" has the same bits there. Dimensions other than the first cost one
// local copy of N, which makes the ranks' blocks contiguous. Source: Shoeybi et al. 2019, section 3 (f and g: the first pair); Korthikanti
// et al. 2022, section 4.2.1 (the third). Where we differ: one function for all six, and second derivatives.

#include "cohort/tensor/collective_ops.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <c10/core/WrapDimMinimal.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <utility>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The two of a pair follow one another.
enum class Exchange { kCopy, kSum, kGather, kSlice, kGatherWithSum, kSumAndSlice };

const char* name_of(Exchange exchange) {
  static constexpr const char* kNames[] = {"copy_to_ranks",  "sum_over_ranks",  "gather_from_ranks",
                                           "slice_for_rank", "gather_with_sum", "sum_and_slice"};
  return kNames[static_cast<size_t>(exchange)];
}

/// The other one of the pair.
Exchange backward_of(Exchange exchange) { return static_cast<Exchange>(static_cast<int>(exchange) ^ 1); }

int64_t piece_size(const at::Tensor& input, int64_t dim, const Group& group, Exchange exchange) {
  if (input.size(dim) % group.size() != 0) {
    fail(ErrorCode::kBadInput, name_of(exchange), ": dimension ", dim, " of a tensor of shape ", input.sizes(), " does not divide by ",
         group.size(), " ranks (rank ", group.rank(), "); use a size that does, or keep the tensor whole");
  }
  return input.size(dim) / group.size();
}

at::Tensor sum(const at::Tensor& input, Group group, Exchange exchange) {
  at::Tensor result = input.clone(at::MemoryFormat::Contiguous);
  group.all_reduce(result, Reduction::kSum, name_of(exchange));
  return result;
}

at::Tensor gather(const at::Tensor& input, int64_t dim, Group group, Exchange exchange) {
  const at::Tensor mine = input.contiguous();
  std::vector<int64_t> shape = mine.sizes().vec();
  shape.insert(shape.begin(), group.size());
  const at::Tensor all = at::empty(shape, mine.options().memory_format(at::MemoryFormat::Contiguous));
  group.all_gather(all, mine, name_of(exchange));
  shape.erase(shape.begin());
  shape[static_cast<size_t>(dim)] *= group.size();
  return all.movedim(0, dim).reshape(shape);
}

at::Tensor sum_slice(const at::Tensor& input, int64_t dim, Group group, Exchange exchange) {
  const int64_t size = piece_size(input, dim, group, exchange);
  const at::Tensor pieces = dim == 0 ? input.contiguous() : at::stack(input.split(size, dim));
  std::vector<int64_t> shape = input.sizes().vec();
  shape[static_cast<size_t>(dim)] = size;
  at::Tensor result = at::empty(shape, input.options().memory_format(at::MemoryFormat::Contiguous));
  group.start_reduce_scatter_sum(result.view({-1}), pieces.view({-1}), name_of(exchange))->wait();
  return result;
}

std::function<at::Tensor(const at::Tensor&)> summand_change;

at::Tensor summand(const at::Tensor& input) { return summand_change ? summand_change(input) : input; }

at::Tensor run(Exchange exchange, const at::Tensor& input, int64_t dim, const Group& group) {
  switch (exchange) {
    case Exchange::kCopy:
      return input;
    case Exchange::kSum:
      return sum(summand(input), group, exchange);
    case Exchange::kGather:
    case Exchange::kGatherWithSum:
      return gather(input, dim, group, exchange);
    case Exchange::kSlice: {
      const int64_t size = piece_size(input, dim, group, exchange);
      // A copy, since a view would keep the whole tensor's memory.
      return input.narrow(dim, group.rank() * size, size).clone(at::MemoryFormat::Contiguous);
    }
    case Exchange::kSumAndSlice:
      return sum_slice(summand(input), dim, group, exchange);
  }
  return input;
}

at::Tensor exchanged(Exchange exchange, const at::Tensor& input, int64_t dim, const Group& group);

/// State for backward.
struct Saved : torch::CustomClassHolder {
  Saved(Exchange exchange_in, int64_t dim_in, Group group_in) : exchange(exchange_in), dim(dim_in), group(std::move(group_in)) {}
  Exchange exchange;
  int64_t dim;
  Group group;
};

struct ExchangeFunction : torch::autograd::Function<ExchangeFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input, Exchange exchange, int64_t dim, const Group& group) {
    ctx->saved_data["saved"] = c10::IValue::make_capsule(c10::make_intrusive<Saved>(exchange, dim, group));
    return run(exchange, input, dim, group);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto capsule = ctx->saved_data["saved"].toCapsule();
    const Saved& saved = static_cast<const Saved&>(*capsule);
    return {exchanged(backward_of(saved.exchange), gradients[0], saved.dim, saved.group), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

at::Tensor exchanged(Exchange exchange, const at::Tensor& input, int64_t dim, const Group& group) {
  if (group.size() == 1) return input;
  const int64_t positive_dim = exchange == Exchange::kCopy || exchange == Exchange::kSum ? 0 : c10::maybe_wrap_dim(dim, input.dim());
  return ExchangeFunction::apply(input, exchange, positive_dim, group);
}

}  // namespace

void change_summands(std::function<at::Tensor(const at::Tensor&)> change) { summand_change = std::move(change); }

at::Tensor copy_to_ranks(const at::Tensor& input, const Group& group) { return exchanged(Exchange::kCopy, input, 0, group); }
at::Tensor sum_over_ranks(const at::Tensor& input, const Group& group) { return exchanged(Exchange::kSum, input, 0, group); }
at::Tensor gather_from_ranks(const at::Tensor& input, int64_t dim, const Group& group) {
  return exchanged(Exchange::kGather, input, dim, group);
}
at::Tensor slice_for_rank(const at::Tensor& input, int64_t dim, const Group& group) {
  return exchanged(Exchange::kSlice, input, dim, group);
}
at::Tensor gather_with_sum(const at::Tensor& input, int64_t dim, const Group& group) {
  return exchanged(Exchange::kGatherWithSum, input, dim, group);
}
at::Tensor sum_and_slice(const at::Tensor& input, int64_t dim, const Group& group) {
  return exchanged(Exchange::kSumAndSlice, input, dim, group);
}

}  // namespace cohort
