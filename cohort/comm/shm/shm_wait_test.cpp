#include "cohort/comm/shm/shm_wait.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <new>
#include <stdexcept>
#include <thread>

namespace cohort {
namespace {

constexpr int kRanks = 3;

/// What three ranks share; this process is rank 0, the others are children that publish 1 in `come` and then sleep.
struct Page {
  std::array<ShmCounter, kRanks> come, lost;
};

class SleepingRanks {
 public:
  SleepingRanks() : page(*new(::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Page) {
    pids.push_back(::getpid());
    for (int rank = 1; rank < kRanks; ++rank) {
      const pid_t pid = ::fork();
      if (pid == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        publish(page.come[rank], 1);
        for (;;) ::pause();
      }
      pids.push_back(pid);
    }
  }
  ~SleepingRanks() {
    for (int rank = 1; rank < kRanks; ++rank) {
      kill(rank);
      ::waitpid(pids[rank], nullptr, 0);
    }
    ::munmap(&page, sizeof page);
  }
  SleepingRanks(const SleepingRanks&) = delete;

  void kill(int rank) const { ::kill(pids[rank], SIGKILL); }

  Page& page;
  std::vector<int> pids;
};

template <typename Wait>
std::string outcome(const Wait& wait) {
  try {
    wait();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "come";
}

}  // namespace

TEST_CASE("what a dead rank had published counts, what it had not names it, in every arena") {
  const SleepingRanks ranks;
  const ShmWaiter waiter(ranks.pids, 60), of_other_arena(ranks.pids, 60);
  waiter.wait(ranks.page.come[1], 1, 1);
  ranks.kill(1);
  CHECK(outcome([&] { waiter.wait(ranks.page.come[1], 2, 1); }) == "rank 1 has ended");
  CHECK(outcome([&] { of_other_arena.wait(ranks.page.come[1], 2, 1); }) == "rank 1 has ended");
  CHECK(outcome([&] { of_other_arena.wait_all(0, 2, [&](int peer) -> ShmFlag& { return ranks.page.come[peer]; }); }) == "rank 1 has ended");
  CHECK(outcome([&] { waiter.wait(ranks.page.come[1], 1, 1); }) == "come");
  CHECK(outcome([&] { waiter.wait(ranks.page.come[2], 1, 2); }) == "come");
  CHECK(waiter.has_ended(1));
  CHECK_FALSE(waiter.has_ended(2));
}

TEST_CASE("a rank that lives and does not come is late, not dead") {
  const SleepingRanks ranks;
  const ShmWaiter waiter(ranks.pids, 0.05);
  CHECK(outcome([&] { waiter.wait(ranks.page.come[2], 2, 2); }) == "rank 2 did not come within 0.05 s");
  // A thread of this process, which has ended, is no dead rank either.
  std::thread([] {}).join();
  const ShmWaiter of_threads({::getpid(), ::getpid()}, 0.05);
  CHECK(outcome([&] { of_threads.wait(ranks.page.come[1], 2, 1); }) == "rank 1 did not come within 0.05 s");
  CHECK_FALSE(of_threads.has_ended(1));
}

TEST_CASE("whoever finds a dead rank tells those who wait for somebody else") {
  const SleepingRanks ranks;
  ShmWaiter waiter(ranks.pids, 60), of_other_rank({-1, -1, ::getpid()}, 60);
  std::vector<ShmFlag*> lost;
  for (ShmCounter& flag : ranks.page.lost) lost.push_back(&flag);
  waiter.set_lost_flags(lost, 0);
  of_other_rank.set_lost_flags(lost, 2);
  ranks.kill(1);
  CHECK(outcome([&] { waiter.wait(ranks.page.come[1], 2, 1); }) == "rank 1 has ended");
  CHECK(outcome([&] { of_other_rank.wait(ranks.page.come[0], 1, 0); }) == "rank 1 has ended");
  CHECK(ranks.page.lost[2].value == 2);
}

TEST_CASE("a message from any rank is given up when all others have ended") {
  const SleepingRanks ranks;
  const ShmWaiter waiter(ranks.pids, 0.3), patient(ranks.pids, 60);
  const auto never = [] { return false; };
  ranks.kill(1);
  CHECK(outcome([&] { waiter.wait_until(never, never, nullptr, -1, 0, "nothing came"); }) == "nothing came within 0.3 s");
  CHECK(outcome([&] { patient.wait_until(never, never, nullptr, 1, 0, "nothing came"); }) == "rank 1 has ended");
  ranks.kill(2);
  CHECK(outcome([&] { patient.wait_until(never, never, nullptr, -1, 0, "nothing came"); }) == "rank 2 has ended");
}

}  // namespace cohort
