// Ranks are forked here and not by run_ranks: its supervisor would end the survivors and print each death; here nobody but the survivors
// themselves may notice.
#include "cohort/bench/faults.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <new>
#include <thread>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/random.h"
#include "cohort/comm/compute_threads.h"
#include "cohort/comm/group.h"
#include "cohort/world/launch.h"

namespace cohort {
namespace {

constexpr int kMaxRanks = 64;
constexpr int64_t kElements = (1 << 20) / 4;

/// Shared by the ranks of one trial. The steady clock is that of the whole machine.
struct Trial {
  std::atomic<int> num_ready{0};
  std::atomic<double> signalled{0};
  std::atomic<double> noticed[kMaxRanks]{};
  char error[kMaxRanks][512]{};
};

World world_of(int rank, int size, int store_fd) {
  World world = world_from_environment();
  world.launcher = "cohort";
  world.rank = world.local_rank = rank;
  world.size = world.local_size = size;
  world.store_fd = store_fd;
  return world;
}

/// The life of one rank; never returns.
[[noreturn]] void live(const BenchFaultsOptions& options, int trial_number, int rank, int store_fd, Trial& trial) {
  std::thread killer;
  try {
    use_compute_threads(1);
    Group group = Group::create(world_of(rank, options.num_ranks, store_fd),
                                {.backend = options.backend, .timeout_seconds = options.timeout_seconds});
    at::Tensor gradients = group.allocate(kElements, at::kFloat);
    group.all_reduce_sum(gradients, "the gradients");
    ++trial.num_ready;
    if (rank + 1 == options.num_ranks) {
      killer = std::thread([&] {
        while (trial.num_ready < options.num_ranks) std::this_thread::yield();
        const uint64_t wait_us = 5000 + random_bits(1, trial_number) % 45000;
        std::this_thread::sleep_for(std::chrono::microseconds(wait_us));
        trial.signalled = steady_seconds();
        ::kill(::getpid(), options.stop ? SIGSTOP : SIGKILL);
      });
    }
    while (true) group.all_reduce_sum(gradients, "the gradients");
  } catch (const std::exception& error) {
    trial.noticed[rank] = steady_seconds();
    std::strncpy(trial.error[rank], error.what(), sizeof trial.error[rank] - 1);
  }
  ::_exit(0);
}

/// Ends and reaps whatever of `ranks` still runs.
void end_all(std::vector<pid_t>& ranks) {
  for (const pid_t pid : ranks) {
    if (pid <= 0) continue;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  ranks.clear();
}

/// Waits until every survivor (all but the last rank) has ended, or it is too late.
void wait_for_survivors(const BenchFaultsOptions& options, std::vector<pid_t>& ranks) {
  const double end = steady_seconds() + options.timeout_seconds + 10;
  for (size_t left = ranks.size() - 1; left > 0 && steady_seconds() < end;) {
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      if (ranks[rank] <= 0 || ::waitpid(ranks[rank], nullptr, WNOHANG) != ranks[rank]) continue;
      ranks[rank] = 0;
      left -= rank + 1 < ranks.size();
    }
    ::usleep(200);
  }
}

void run_trial(const BenchFaultsOptions& options, int number, Trial& trial) {
  const int store_fd = ::memfd_create("cohort-store", 0);
  if (store_fd < 0) fail(ErrorCode::kEnvironment, "memfd_create failed: ", std::strerror(errno));
  const pid_t parent = ::getpid();
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(4);
      live(options, number, rank, store_fd, trial);
    }
    if (pid < 0) {
      end_all(ranks);
      ::close(store_fd);
      fail(ErrorCode::kEnvironment, "could not start rank ", rank, " of ", options.num_ranks, ": ", std::strerror(errno));
    }
    ranks.push_back(pid);
  }
  ::close(store_fd);
  wait_for_survivors(options, ranks);
  end_all(ranks);
}

}  // namespace

FaultTimes bench_faults(const BenchFaultsOptions& options) {
  if (options.num_ranks < 2 || options.num_ranks > kMaxRanks)
    fail(ErrorCode::kBadInput, "bench faults: expected 2 to ", kMaxRanks, " workers, found ", options.num_ranks);
  if (const int threads = num_threads_of_process(); threads != 1)
    fail(ErrorCode::kEnvironment, "cannot fork ranks: this process already has ", threads, " threads");
  void* const page = ::mmap(nullptr, sizeof(Trial), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) throw std::bad_alloc();
  const std::unique_ptr<void, void (*)(void*)> mapping(page, [](void* memory) { ::munmap(memory, sizeof(Trial)); });
  FaultTimes out;
  const std::string lost = concat("rank ", options.num_ranks - 1);
  for (int number = 0; number < options.trials; ++number) {
    Trial& trial = *new (page) Trial;
    run_trial(options, number, trial);
    double slowest = 0;
    bool named = true;
    for (int rank = 0; rank + 1 < options.num_ranks; ++rank) {
      if (trial.signalled == 0 || trial.noticed[rank] < trial.signalled)
        fail(ErrorCode::kFailed, "trial ", number + 1, ": rank ", rank,
             trial.noticed[rank] == 0 ? " did not notice that " : " failed before ", lost, " was ", options.stop ? "stopped" : "killed",
             " ", trial.error[rank]);
      slowest = std::max(slowest, trial.noticed[rank] - trial.signalled);
      named = named && std::string(trial.error[rank]).find(lost) != std::string::npos;
    }
    out.seconds.push_back(slowest);
    out.num_named += named;
    out.example = trial.error[0];
  }
  return out;
}

}  // namespace cohort
