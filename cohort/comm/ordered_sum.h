#pragma once
// Sum over ranks in rank order, over any c10d backend.
//
// Steps, p ranks, n elements:
//   small (n up to kSmallBytes): 1. every rank gathers all p vectors; 2. adds them in rank order.
//   large: 1. all-to-all: rank r receives slice r of every rank; 2. adds the p slices in rank order; 3. all-gather of the sums.
//
// Cost for a rank: small 1 collective, (p-1) n elements received; large 2 collectives, 2 (p-1)/p n elements sent and received, the same as
// a ring all-reduce, plus one slice of n/p elements for each rank as scratch.
//
// Why: a ring adds each element in an order that depends on its place in the buffer, so results change with bucket boundaries and ranks.
// Here the sum of an element depends on its p addends alone.
//
// Source: the reduce-scatter + all-gather of Rabenseifner 2004 ("Optimization of Collective Reduction Operations"); the order is fixed
// here.

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <cstdint>

namespace cohort {

class OrderedSum {
 public:
  static constexpr int64_t kSmallBytes = 32 * 1024;

  /// Starts the first step. `flat` is contiguous and 1-d, and holds the sum after wait(). All ranks start and wait for their sums in the
  /// same order, and start no other collective between the first and the last wait() of sums under way.
  OrderedSum(c10d::Backend& backend, at::Tensor flat);
  void wait();

 private:
  void add_received(at::Tensor sum) const;

  c10d::Backend& backend_;
  at::Tensor flat_, padded_, received_;
  c10::intrusive_ptr<c10d::Work> work_;
  bool small_;
};

}  // namespace cohort
