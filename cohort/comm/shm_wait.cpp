#include "cohort/comm/shm_wait.h"

#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <stdexcept>

#include "cohort/base/error.h"

namespace cohort {
namespace {

// A rank that sleeps is woken some 50 us late, so ranks that have cores of their own wait awake for about as long as two steps of a small
// model differ.
constexpr int kSpins = 2000, kYields = 2000, kYieldsShared = 64;
constexpr long kSleepNanoseconds = 2'000'000;

/// Tells the processor that this is a waiting loop.
inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// The 32 bits of the counter that change with every step: what the kernel compares.
uint32_t* futex_word(ShmCounter& counter) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the low half comes first");
  return reinterpret_cast<uint32_t*>(&counter.value);
}

}  // namespace

void publish(ShmCounter& counter, uint64_t value) {
  // Sequentially consistent on both sides: either this store is seen by a rank about to sleep, or its `sleepers` is seen here.
  counter.value.store(value, std::memory_order_seq_cst);
  if (counter.sleepers.load(std::memory_order_seq_cst) > 0)
    ::syscall(SYS_futex, futex_word(counter), FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

ShmWaiter::ShmWaiter(const std::vector<int>& pids, double timeout_seconds) : timeout_(timeout_seconds) {
  for (const int pid : pids) pidfds_.push_back(pid == ::getpid() ? -1 : static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  const bool own_cores = static_cast<long>(pids.size()) <= ::sysconf(_SC_NPROCESSORS_ONLN);
  num_spins_ = own_cores ? kSpins : 0;
  num_yields_ = own_cores ? kYields : kYieldsShared;
}

ShmWaiter::~ShmWaiter() {
  for (const int fd : pidfds_)
    if (fd >= 0) ::close(fd);
}

bool ShmWaiter::has_ended(int peer) const {
  if (pidfds_[static_cast<size_t>(peer)] < 0) return false;
  pollfd poll{pidfds_[static_cast<size_t>(peer)], POLLIN, 0};
  return ::poll(&poll, 1, 0) > 0;
}

void ShmWaiter::wait(ShmCounter& counter, uint64_t value, int peer) const {
  for (int spin = 0; spin < num_spins_; ++spin) {
    if (has_reached(counter, value)) return;
    pause_briefly();
  }
  for (int yield = 0; yield < num_yields_; ++yield) {
    if (has_reached(counter, value)) return;
    ::sched_yield();
  }
  const auto deadline = std::chrono::steady_clock::now() + timeout_;
  while (!has_reached(counter, value)) {
    // A peer may publish and end: only what it had not published is missing.
    if (has_ended(peer) && !has_reached(counter, value)) throw std::runtime_error(concat("rank ", peer, " has ended"));
    if (std::chrono::steady_clock::now() > deadline)
      throw std::runtime_error(concat("rank ", peer, " did not come within ", timeout_.count(), " s"));
    counter.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const uint64_t seen = counter.value.load(std::memory_order_seq_cst);
    if (seen < value) {
      const timespec limit{0, kSleepNanoseconds};
      ::syscall(SYS_futex, futex_word(counter), FUTEX_WAIT, static_cast<uint32_t>(seen), &limit, nullptr, 0);
    }
    counter.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }
}

}  // namespace cohort
