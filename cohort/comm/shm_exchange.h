#pragma once
// Exchange between ranks of one host through memory that they share.
//
// Sum in place (tensors from allocate()), p ranks, n elements; element i of rank r's array is x_r[i]:
//   1. start: rank r publishes "my addends are there".
//   2. finish: rank r waits for all, adds slice r of all p arrays in rank order and writes the sum into all p arrays; publishes; waits for
//      all.
//
// Cost for a rank: 2 counters published, n elements read and n written, whatever p is; no system call unless it must sleep. That is the
// least memory traffic for results in p places (2 p n on the host).
//
// Staged operations (any other tensor; sum, broadcast, gather, barrier) go through two tiles of each rank in rounds: fill a tile, publish,
// wait for all, read the tiles of others. One wait a round, since a tile is filled again only after the round between, which nobody enters
// before it has read.
//
// Source: the idea of in-place push is that of single-copy collectives (XHC: Katevenis et al., CLUSTER 2022); order of
// summation, counters and waiting are ours.

#include <ATen/core/Tensor.h>

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "cohort/comm/shm_arena.h"
#include "cohort/comm/shm_wait.h"

namespace cohort {

/// One rank's side. One thread; the same calls in the same order on all ranks. std::runtime_error names the rank that is missing.
class ShmExchange {
 public:
  ShmExchange(std::shared_ptr<ShmArena> arena, const std::vector<int>& pids, double timeout_seconds);

  at::Tensor allocate(int64_t num_elements, at::TensorOptions options) { return arena_->allocate(num_elements, options); }
  /// Whether sum_in_place works on this tensor.
  bool is_shared(const at::Tensor& tensor) const;
  /// Starts a sum; returns its number. The tensor must live, and not be touched, until finish_sum(number).
  uint64_t start_sum(const at::Tensor& tensor);
  void finish_sum(uint64_t number);

  void staged_sum(at::Tensor tensor);
  void broadcast(at::Tensor tensor, int root);
  void all_gather(at::Tensor output, const at::Tensor& input);
  void barrier();
  const std::shared_ptr<ShmArena>& arena() const { return arena_; }
  const ShmWaiter& waiter() const { return waiter_; }

 private:
  struct Sum {
    size_t offset;
    size_t count;
    size_t element_bytes;
    at::ScalarType type;
  };
  void add_my_slice(const Sum& sum);
  void add_slices_up_to(uint64_t number, bool block);
  void round(size_t bytes, const std::function<void(std::byte*)>& fill,
             const std::function<void(size_t begin, size_t length, const std::byte* const* tiles)>& read);

  std::shared_ptr<ShmArena> arena_;
  ShmWaiter waiter_;
  std::deque<Sum> under_way_;  // Started, my slice not added yet.
  uint64_t num_started_ = 0, num_added_ = 0, num_rounds_ = 0;
};

}  // namespace cohort
