#include "cohort/comm/shm/shm_wait.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <stdexcept>
#include <system_error>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"

namespace cohort {
namespace {

enum class Memory { kAttached, kDetached, kUnknown };

/// The first number of a statm file is the program's size in pages.
Memory read_memory(int descriptor) {
  char text[2];
  const ssize_t length = ::pread(descriptor, text, sizeof text, 0);
  if (length < 0) return errno == ESRCH ? Memory::kDetached : Memory::kUnknown;
  if (length < static_cast<ssize_t>(sizeof text) || text[0] < '0' || text[0] > '9') return Memory::kUnknown;
  return text[0] == '0' && text[1] == ' ' ? Memory::kDetached : Memory::kAttached;
}

std::string proc(int pid, const char* name) { return "/proc/" + std::to_string(pid) + "/" + name; }

bool is_detached(const std::filesystem::path& thread) {
  const UniqueDescriptor statm(::open((thread / "statm").c_str(), O_RDONLY | O_CLOEXEC));
  // Gone since it was listed, or detached.
  return statm ? read_memory(statm.get()) == Memory::kDetached : errno == ENOENT || errno == ESRCH;
}

/// Whether every thread is detached. A thread that starts another one and ends may hide it from one listing, so threads are listed until no
/// new one is seen.
bool are_all_detached(int pid) {
  std::vector<std::string> known;
  size_t num_before;
  do {
    num_before = known.size();
    std::error_code error;
    for (std::filesystem::directory_iterator thread(proc(pid, "task"), error), end; !error && thread != end; thread.increment(error)) {
      const std::string tid = thread->path().filename();
      if (std::find(known.begin(), known.end(), tid) != known.end()) continue;
      if (!is_detached(thread->path())) return false;
      known.push_back(tid);
    }
    if (error && error != std::errc::no_such_file_or_directory && error != std::errc::no_such_process) return false;
  } while (known.size() > num_before);
  return true;
}

}  // namespace

ProcessWatch::ProcessWatch(int pid) : pid_(pid), pidfd_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) {
  memory_.reset(::open(proc(pid, "statm").c_str(), O_RDONLY | O_CLOEXEC));
  // A system that shows no pages of a living process must not be believed later.
  if (memory_ && read_memory(memory_.get()) != Memory::kAttached) memory_.reset();
}

bool ProcessWatch::has_exited() const {
  if (memory_) {
    const Memory memory = read_memory(memory_.get());
    if (memory == Memory::kAttached) return false;
    if (memory == Memory::kDetached && are_all_detached(pid_)) return true;
  }
  if (!pidfd_) return false;
  pollfd poll{pidfd_.get(), POLLIN, 0};
  return ::poll(&poll, 1, 0) > 0;
}

namespace {

// Waking a sleeping rank takes some 50 us, so ranks with cores of their own spin for about as long as two steps of a small model differ.
constexpr int kSpins = 2000, kYieldsShared = 64;
// A rank whose core is taken by another program is away for a time slice of some 3 ms. A waiter that sleeps meanwhile may be woken on the
// other's core, where each would block the other; so it yields for longer than a slice.
constexpr std::chrono::microseconds kYieldsOwn{5000};
constexpr int kSpinsBetweenIdle = 128;
constexpr long kSleepNanoseconds = 1'000'000, kSleepNanosecondsBusy = 50'000;
// A check of a peer's process takes a microsecond; a yield on a busy machine may take much longer.
constexpr std::chrono::microseconds kBetweenLooks{500};

/// Marks a spin loop for the processor.
inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Where spinning would block the awaited rank.
bool is_on_our_core(const ShmFlag& flag) {
  const uint32_t core = flag.core.load(std::memory_order_relaxed);
  return core != 0 && core == static_cast<uint32_t>(::sched_getcpu()) + 1;
}

/// The counter's low 32 bits, which the kernel compares.
uint32_t* futex_word(ShmFlag& flag) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the low half comes first");
  return reinterpret_cast<uint32_t*>(&flag.value);
}

/// Sleeps until `flag` is no longer `seen`, a wake-up, or `nanoseconds` have passed.
void sleep_on(ShmFlag& flag, uint64_t seen, long nanoseconds) {
  flag.sleepers.fetch_add(1, std::memory_order_seq_cst);
  if (flag.value.load(std::memory_order_seq_cst) == seen) {
    const timespec limit{0, nanoseconds};
    ::syscall(SYS_futex, futex_word(flag), FUTEX_WAIT, static_cast<uint32_t>(seen), &limit, nullptr, 0);
  }
  flag.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace

void publish(ShmFlag& flag, uint64_t value) {
  flag.core.store(static_cast<uint32_t>(::sched_getcpu()) + 1, std::memory_order_relaxed);
  // Sequentially consistent on both sides: either a rank about to sleep sees this store, or its `sleepers` is seen here.
  flag.value.store(value, std::memory_order_seq_cst);
  if (flag.sleepers.load(std::memory_order_seq_cst) > 0) ::syscall(SYS_futex, futex_word(flag), FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

ShmWaiter::ShmWaiter(const std::vector<int>& pids, double timeout_seconds) : timeout_(timeout_seconds) {
  for (const int pid : pids) watches_.push_back(pid == ::getpid() ? nullptr : std::make_unique<ProcessWatch>(pid));
  const bool own_cores = static_cast<long>(pids.size()) <= ::sysconf(_SC_NPROCESSORS_ONLN);
  num_spins_ = own_cores ? kSpins : 0;
  yields_for_ = own_cores ? kYieldsOwn : std::chrono::microseconds(0);
}

void ShmWaiter::set_lost_flags(std::vector<ShmFlag*> flags, int self) {
  lost_ = std::move(flags);
  self_ = self;
}

bool ShmWaiter::has_ended(int peer) const {
  const auto& watch = watches_[static_cast<size_t>(peer)];
  return watch && watch->has_exited();
}

void ShmWaiter::report_lost(int peer) const {
  if (!lost_.empty()) publish(*lost_[static_cast<size_t>(self_)], static_cast<uint64_t>(peer) + 1);
  throw std::runtime_error(concat("rank ", peer, " has ended"));
}

void ShmWaiter::check_lost() const {
  for (const ShmFlag* flag : lost_)
    if (const uint64_t lost = flag->value.load(std::memory_order_acquire); lost != 0) report_lost(static_cast<int>(lost) - 1);
}

bool ShmWaiter::spin(const ShmFlag& flag, uint64_t value) const {
  if (has_reached(flag, value)) return true;
  if (num_spins_ > 0 && is_on_our_core(flag)) return false;
  for (int spin = 0; spin < num_spins_; ++spin) {
    pause_briefly();
    if (has_reached(flag, value)) return true;
    if (spin % kSpinsBetweenIdle == kSpinsBetweenIdle - 1) run_idle();
  }
  return false;
}

void ShmWaiter::wait_slowly(std::vector<Awaited> missing, uint64_t value) const {
  const auto come = [&](const Awaited& awaited) { return has_reached(*awaited.flag, value); };
  const auto begin = Clock::now();
  AwakeTimer waited(begin);
  auto next_look = begin + kBetweenLooks;
  for (int round = 0;; ++round) {
    std::erase_if(missing, come);
    if (missing.empty()) return;
    const Idle idle = run_idle();
    const auto now = Clock::now();
    if (idle == Idle::kMoved) waited.restart(now);
    ShmFlag& flag = *missing.front().flag;
    const uint64_t seen = flag.value.load(std::memory_order_seq_cst);
    if (seen >= value) continue;
    if (now >= next_look) {
      next_look = now + kBetweenLooks;
      for (const Awaited& awaited : missing)
        // A peer may publish and then end.
        if (has_ended(awaited.peer) && !come(awaited)) report_lost(awaited.peer);
      check_lost();
      if (waited.seconds(now) > timeout_.count())
        throw std::runtime_error(concat("rank ", missing.front().peer, " did not come within ", timeout_.count(), " s"));
    }
    if (round < kYieldsShared || now - begin < yields_for_) ::sched_yield();
    else sleep_on(flag, seen, idle != Idle::kNothing ? kSleepNanosecondsBusy : kSleepNanoseconds);
  }
}

void ShmWaiter::wait_until(const std::function<bool()>& done, const std::function<bool()>& moved, ShmFlag* flag, int peer, int self,
                           const std::string& what) const {
  const auto begin = Clock::now();
  auto last_move = begin;
  AwakeTimer waited(begin);
  auto next_look = begin + kBetweenLooks;
  const int size = static_cast<int>(watches_.size());
  for (int round = 0;; ++round) {
    const uint64_t seen = flag ? flag->value.load(std::memory_order_seq_cst) : 0;
    if (done()) return;
    if (moved()) {
      last_move = Clock::now();
      waited.restart(last_move);
      round = 0;
    }
    if (round < num_spins_) {
      pause_briefly();
      continue;
    }
    if (const auto now = Clock::now(); now >= next_look) {
      next_look = now + kBetweenLooks;
      int ended = 0, last_ended = -1;
      for (int other = 0; other < size; ++other)
        if (other != self && (peer < 0 || other == peer) && has_ended(other)) ++ended, last_ended = other;
      // Data that an ended peer had written may have arrived since.
      if (ended == (peer < 0 ? size - 1 : 1) && ended > 0 && !done() && !moved()) report_lost(last_ended);
      if (waited.seconds(now) > timeout_.count()) throw std::runtime_error(concat(what, " within ", timeout_.count(), " s"));
    }
    if (round < num_spins_ + kYieldsShared || Clock::now() - last_move < yields_for_) {
      ::sched_yield();
    } else if (flag) {
      sleep_on(*flag, seen, kSleepNanosecondsBusy);
    } else {
      const timespec limit{0, kSleepNanosecondsBusy};
      ::nanosleep(&limit, nullptr);
    }
  }
}

}  // namespace cohort
