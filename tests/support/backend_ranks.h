#pragma once
// For tests: the backends of thread ranks over any transport, and data that is awkward to exchange.

#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/comm/collective_backend.h"
#include "cohort/comm/net/gloo.h"
#include "cohort/comm/shm/shm_arena.h"
#include "cohort/comm/shm/shm_transport.h"
#include "tests/support/thread_transport.h"

namespace cohort {

using Tensors = std::vector<at::Tensor>;
using RedOp = c10d::ReduceOp::RedOpType;
using BackendPointer = c10::intrusive_ptr<CollectiveBackend>;

/// The test's own transport in both ways of running calls, and the real ones.
enum class RankKind { kThread, kOwnThread, kShm, kGloo };
inline constexpr RankKind kRankKinds[] = {RankKind::kThread, RankKind::kOwnThread, RankKind::kShm, RankKind::kGloo};

class BackendRanks {
 public:
  BackendRanks(int size, RankKind kind, double timeout_seconds = 20)
      : size_(size), kind_(kind), timeout_seconds_(timeout_seconds), hub_(make_thread_hub(size, timeout_seconds)) {}

  BackendPointer backend(int rank) const {
    CollectiveBackend::Options options;
    options.timeout_seconds = timeout_seconds_;
    options.store = store_;
    return c10::make_intrusive<CollectiveBackend>(transport(rank), options);
  }

  /// Runs `body` in a thread for each rank; what each threw, or "".
  std::vector<std::string> run(const std::function<void(CollectiveBackend&)>& body) const {
    std::vector<std::string> errors(static_cast<size_t>(size_));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size_; ++rank)
      threads.emplace_back([&, rank] {
        try {
          const BackendPointer mine = backend(rank);
          body(*mine);
        } catch (const std::exception& error) {
          errors[static_cast<size_t>(rank)] = error.what();
        }
      });
    for (std::thread& thread : threads) thread.join();
    return errors;
  }

 private:
  std::unique_ptr<Transport> transport(int rank) const {
    if (kind_ == RankKind::kGloo)
      return make_gloo_transport(c10::make_intrusive<c10d::PrefixStore>("gloo", store_), rank, size_, "127.0.0.1", timeout_seconds_);
    if (kind_ != RankKind::kShm) return make_thread_transport(hub_, rank, kind_ == RankKind::kOwnThread);
    const std::vector<int> pids(static_cast<size_t>(size_), ::getpid());
    return std::make_unique<ShmTransport>(ShmArena::create(*store_, rank, size_), pids, timeout_seconds_);
  }

  int size_;
  RankKind kind_;
  double timeout_seconds_;
  std::shared_ptr<ThreadHub> hub_;
  c10::intrusive_ptr<c10d::Store> store_ = c10::make_intrusive<c10d::HashStore>();
};

inline void run_ranks_well(int size, RankKind kind, const std::function<void(CollectiveBackend&)>& body) {
  for (const std::string& error : BackendRanks(size, kind).run(body)) CHECK(error == "");
}

/// Thread-safe, as doctest's CHECK is not.
inline void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error("wrong: " + what);
}

/// Every second element of a larger tensor: not contiguous.
inline at::Tensor with_gaps(const at::Tensor& tensor) {
  at::Tensor wide = at::zeros({tensor.numel(), 2}, tensor.options());
  wide.select(1, 0).copy_(tensor);
  return wide.select(1, 0);
}

}  // namespace cohort
