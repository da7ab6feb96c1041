#include "cohort/comm/transport/call_arguments.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <numeric>

#include "cohort/base/fail.h"

namespace cohort {

void check_tensor(const char* operation, const char* what, const at::Tensor& tensor) {
  if (!tensor.defined()) fail(ErrorCode::kBadInput, operation, ": the ", what, " tensor is undefined");
  if (!tensor.device().is_cpu())
    fail(ErrorCode::kBadInput, operation, ": the ", what, " tensor is on ", tensor.device().str(),
         "; this group exchanges CPU memory: copy it there first");
  if (tensor.layout() != at::kStrided) fail(ErrorCode::kBadInput, operation, ": the ", what, " tensor is not dense; use to_dense()");
}

at::Tensor& only_tensor(const char* operation, const char* what, std::vector<at::Tensor>& tensors) {
  if (tensors.size() != 1) fail(ErrorCode::kBadInput, operation, ": one ", what, " tensor is wanted, not ", tensors.size());
  check_tensor(operation, what, tensors[0]);
  return tensors[0];
}

void check_same_type(const char* operation, const at::Tensor& one, const at::Tensor& other) {
  if (one.scalar_type() != other.scalar_type())
    fail(ErrorCode::kBadInput, operation, ": input and output differ in type: ", c10::toString(one.scalar_type()), " and ",
         c10::toString(other.scalar_type()));
}

void check_elements(const char* operation, const char* what, const at::Tensor& tensor, int64_t expected) {
  if (tensor.numel() != expected)
    fail(ErrorCode::kBadInput, operation, ": the ", what, " tensor has ", tensor.numel(), " elements; ", expected, " are wanted");
}

bool is_plain(const at::Tensor& tensor) { return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg(); }

at::Tensor plain(const at::Tensor& tensor) {
  at::Tensor detached = tensor.detach();
  return is_plain(detached) ? detached : detached.resolve_conj().resolve_neg().contiguous();
}

at::Tensor plain_room(const at::Tensor& tensor) {
  return is_plain(tensor) ? tensor.detach() : at::empty(tensor.sizes(), tensor.options().requires_grad(false));
}

at::Tensor joined_view(const std::vector<at::Tensor>& tensors) {
  const char* next = nullptr;
  int64_t count = 0;
  for (const at::Tensor& tensor : tensors) {
    if (!is_plain(tensor) || !tensor.is_alias_of(tensors[0])) return {};
    const char* data = static_cast<const char*>(tensor.data_ptr());
    if (next && data != next) return {};
    next = data + tensor.nbytes();
    count += tensor.numel();
  }
  return tensors.empty() ? at::Tensor() : at::as_strided(tensors[0].detach(), {count}, {1}, tensors[0].storage_offset());
}

at::Tensor joined(const std::vector<at::Tensor>& tensors) {
  if (at::Tensor view = joined_view(tensors); view.defined()) return view;
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) flat.push_back(plain(tensor).view({-1}));
  return at::cat(flat);
}

void split_into(const std::vector<at::Tensor>& tensors, const at::Tensor& flat) {
  int64_t begin = 0;
  for (const at::Tensor& tensor : tensors) {
    tensor.detach().copy_(flat.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    begin += tensor.numel();
  }
}

Reduction reduction_of(const char* operation, const c10d::ReduceOp& op, at::ScalarType type) {
  const bool whole = c10::isIntegralType(type, /*includeBool=*/true), complex = c10::isComplexType(type);
  const auto refuse = [&](const char* name) {
    fail(ErrorCode::kBadInput, operation, ": ", name, " of ", c10::toString(type), " numbers is not defined");
  };
  switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
    case c10d::ReduceOp::SUM:
      return Reduction::kSum;
    case c10d::ReduceOp::PRODUCT:
      return Reduction::kProduct;
    case c10d::ReduceOp::AVG:
      if (whole)
        fail(ErrorCode::kBadInput, operation, ": the average of ", c10::toString(type),
             " numbers is no whole number: sum them, or convert them first");
      return Reduction::kAverage;
    case c10d::ReduceOp::MIN:
      if (complex) refuse("the minimum");
      return Reduction::kMin;
    case c10d::ReduceOp::MAX:
      if (complex) refuse("the maximum");
      return Reduction::kMax;
    case c10d::ReduceOp::BAND:
      if (!whole) refuse("the bitwise and");
      return Reduction::kBitAnd;
    case c10d::ReduceOp::BOR:
      if (!whole) refuse("the bitwise or");
      return Reduction::kBitOr;
    case c10d::ReduceOp::BXOR:
      if (!whole) refuse("the bitwise xor");
      return Reduction::kBitXor;
    case c10d::ReduceOp::PREMUL_SUM:
      fail(ErrorCode::kBadInput, operation, ": PREMUL_SUM is for NCCL alone: multiply the tensor, then sum");
    default:
      fail(ErrorCode::kBadInput, operation, ": unknown reduction ", static_cast<int>(op.op_));
  }
}

std::vector<size_t> split_counts(const char* what, const at::Tensor& tensor, const std::vector<int64_t>& splits, int size) {
  const int64_t num_rows = tensor.dim() == 0 ? 1 : tensor.size(0), row = num_rows == 0 ? 0 : tensor.numel() / num_rows;
  if (splits.empty()) {
    if (num_rows % size != 0)
      fail(ErrorCode::kBadInput, "all-to-all: the ", what, " tensor has ", num_rows, " rows, which ", size,
           " ranks cannot divide equally: give the split sizes");
    return std::vector<size_t>(static_cast<size_t>(size), static_cast<size_t>(num_rows / size * row));
  }
  if (splits.size() != static_cast<size_t>(size))
    fail(ErrorCode::kBadInput, "all-to-all: ", splits.size(), " ", what, " split sizes for ", size, " ranks");
  std::vector<size_t> counts;
  int64_t total = 0;
  for (const int64_t split : splits) {
    if (split < 0 || split > num_rows - total)
      fail(ErrorCode::kBadInput, "all-to-all: the ", what, " split sizes do not add up to the ", num_rows, " rows of the tensor");
    total += split;
    counts.push_back(static_cast<size_t>(split * row));
  }
  if (total != num_rows) fail(ErrorCode::kBadInput, "all-to-all: the ", what, " split sizes add up to ", total, " of ", num_rows, " rows");
  return counts;
}

}  // namespace cohort
