#include "cohort/comm/rendezvous/store.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <torch/torch.h>
#include <unistd.h>

#include <exception>
#include <optional>
#include <thread>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/comm/group.h"

namespace cohort {
namespace {

constexpr int kRanks = 3;

/// A free port of this host.
int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  REQUIRE(::bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0);
  REQUIRE(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0);
  ::close(fd);
  return ntohs(address.sin_port);
}

/// Runs `body` in a thread per rank; throws the first error.
void run_job(const World& job, const std::function<void(const World&)>& body) {
  std::vector<std::exception_ptr> failures(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      World world = job;
      world.rank = world.local_rank = rank;
      world.size = world.local_size = kRanks;
      try {
        body(world);
      } catch (...) {
        failures[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

float sum_over(Group& group, float value) {
  torch::Tensor tensor = torch::full({10}, value);
  group.all_reduce(tensor, Reduction::kSum, "numbers");
  return tensor[9].item<float>();
}

/// Two groups at once, then others that start where only some ranks are done with the previous one.
void make_groups(const World& job, const char* backend) {
  run_job(job, [&](const World& world) {
    const GroupOptions options{.backend = backend, .timeout_seconds = 20};
    const auto mine = static_cast<float>(world.rank + 1);
    {
      Group first = Group::create(world, options), second = Group::create(world, options);
      if (sum_over(second, mine) != 6 || sum_over(first, 10 * mine) != 60) fail(ErrorCode::kFailed, "two groups mix up their sums");
    }
    for (int i = 0; i < 3; ++i) {
      std::optional<Group> later = Group::create(world, options);
      if (sum_over(*later, mine) != 6) fail(ErrorCode::kFailed, "a later group has another sum");
      if (world.rank == 0) later.reset();
      else std::this_thread::sleep_for(std::chrono::milliseconds(5 * world.rank));
    }
  });
}

TEST_CASE("a job may have any number of groups of all its ranks, over a file or an address") {
  for (const char* backend : {"shm", "gloo"}) {
    World file;
    file.launcher = "cohort";
    file.store_fd = ::memfd_create("store", MFD_CLOEXEC);
    CHECK_NOTHROW(make_groups(file, backend));
    ::close(file.store_fd);
    World address;
    address.launcher = "torchrun";
    address.master_address = "127.0.0.1";
    address.master_port = free_port();
    address.job_id = "two groups";
    CHECK_NOTHROW(make_groups(address, backend));
  }
}

}  // namespace
}  // namespace cohort
