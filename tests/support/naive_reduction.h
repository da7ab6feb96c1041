#pragma once
// Reductions by LibTorch's operators, two arrays at a time: for tests, which hold the loops of reduce.h against them.

#include <ATen/ops/add.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/bitwise_xor.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>

#include "cohort/comm/transport/transport.h"

namespace cohort {

/// Of kAverage the sum, of bool either.
inline at::Tensor combined(const at::Tensor& a, const at::Tensor& b, Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
    case Reduction::kAverage:
      return at::add(a, b);
    case Reduction::kProduct:
      return at::mul(a, b);
    case Reduction::kMin:
      return at::minimum(a, b);
    case Reduction::kMax:
      return at::maximum(a, b);
    case Reduction::kBitAnd:
      return at::bitwise_and(a, b);
    case Reduction::kBitOr:
      return at::bitwise_or(a, b);
    case Reduction::kBitXor:
      return at::bitwise_xor(a, b);
  }
  return a;
}

}  // namespace cohort
