#include "tests/support/thread_ranks.h"

#include <ATen/Parallel.h>

#include <exception>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "cohort/comm/collective_backend.h"
#include "cohort/comm/compute_threads.h"
#include "tests/support/threads.h"  // All unit tests with LibTorch link this file, so all begin with one thread, which a fork() needs.

namespace cohort {

void run_thread_ranks(int num_ranks, const std::function<void(Group&)>& body, const GroupOptions& options) {
  warm_up_vector_functions();
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::exception_ptr> failures(static_cast<size_t>(num_ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);  // Ranks share the cores, and kernels divide sums by threads.
      try {
        Group group = Group::create(store, rank, num_ranks, options);
        body(group);
      } catch (...) {
        failures[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

std::string recent_calls(const Group& group) { return static_cast<const CollectiveBackend&>(*group.c10d_backend()).recorder().text(); }

}  // namespace cohort
