#include "cohort/comm/shm/shm_wait.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <new>
#include <thread>

namespace cohort {
namespace {

/// Communication between a child and the test.
struct Page {
  std::atomic<int> step{0};
};

/// A child process that runs `body`, then sleeps until it is killed.
class Child {
 public:
  explicit Child(const std::function<void(Page&)>& body)
      : page_(new(::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Page), pid_(::fork()) {
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    body(*page_);
    for (;;) ::pause();
  }
  ~Child() {
    kill(SIGKILL);
    reap();
    ::munmap(page_, sizeof(Page));
  }
  Child(const Child&) = delete;

  int pid() const { return pid_; }
  Page& page() const { return *page_; }
  void kill(int signal) const {
    if (!reaped_) ::kill(pid_, signal);
  }
  void reap() {
    if (!reaped_) ::waitpid(pid_, nullptr, 0);
    reaped_ = true;
  }

 private:
  Page* page_;
  pid_t pid_;
  bool reaped_ = false;
};

/// Whether `condition` becomes true, however slow the machine is.
bool comes(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return true;
}

bool can_be_waited_for(int pid) {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid;
}

}  // namespace

TEST_CASE("a watch sees a process that runs or is stopped as alive, and a killed one as ended") {
  Child child([](Page& page) { page.step = 1; });
  const ProcessWatch watch(child.pid());
  REQUIRE(comes([&] { return child.page().step == 1; }));
  CHECK_FALSE(watch.has_exited());
  child.kill(SIGSTOP);
  siginfo_t info{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(child.pid()), &info, WSTOPPED) == 0);
  CHECK_FALSE(watch.has_exited());
  child.kill(SIGKILL);
  CHECK(comes([&] { return watch.has_exited(); }));
  child.reap();
  CHECK(watch.has_exited());
}

TEST_CASE("a watch sees the end before the memory of the dead process is released") {
  // 64 MiB in small pages take milliseconds to take down, so at least one of some kills is seen before the process can be waited for.
  bool early = false;
  for (int trial = 0; trial < 40 && !early; ++trial) {
    Child child([](Page& page) {
      constexpr size_t kBytes = size_t{64} << 20;
      auto* const memory = static_cast<char*>(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
      ::madvise(memory, kBytes, MADV_NOHUGEPAGE);
      for (size_t at = 0; at < kBytes; at += 4096) memory[at] = 1;
      page.step = 1;
    });
    const ProcessWatch watch(child.pid());
    REQUIRE(comes([&] { return child.page().step == 1; }));
    child.kill(SIGKILL);
    REQUIRE(comes([&] { return watch.has_exited(); }));
    early = !can_be_waited_for(child.pid());
  }
  CHECK(early);
}

#if !defined(__SANITIZE_THREAD__)  // It allows a child no threads when its parent has had some.
TEST_CASE("a process whose main thread has ended lives as long as another thread") {
  Child child([](Page& page) {
    static Page& shared = page;
    std::thread([] {
      while (shared.step != 1) ::usleep(100);
      ::_exit(0);
    }).detach();
    shared.step = -1;
    ::syscall(SYS_exit, 0);  // This thread alone, as pthread_exit ends it, which would first unwind through the test's frames.
  });
  const ProcessWatch watch(child.pid());
  REQUIRE(comes([&] { return child.page().step == -1; }));
  bool lived = true;
  for (int look = 0; look < 200; ++look) {
    lived = lived && !watch.has_exited();
    ::usleep(100);
  }
  CHECK(lived);
  child.page().step = 1;
  CHECK(comes([&] { return watch.has_exited(); }));
}
#endif

TEST_CASE("what a process wrote last is seen by whoever sees it ended") {
  for (int trial = 0; trial < 20; ++trial) {
    Child child([](Page& page) {
      page.step.store(1, std::memory_order_relaxed);
      ::_exit(0);
    });
    const ProcessWatch watch(child.pid());
    REQUIRE(comes([&] { return watch.has_exited(); }));
    CHECK(child.page().step.load(std::memory_order_relaxed) == 1);
  }
}

TEST_CASE("a process that has ended before is known to have, one that is waited for too") {
  Child child([](Page&) { ::_exit(0); });
  siginfo_t info{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(child.pid()), &info, WEXITED | WNOWAIT) == 0);
  const ProcessWatch late(child.pid());
  CHECK(late.has_exited());
  child.reap();
  CHECK(late.has_exited());
}

TEST_CASE("a forked child does not keep its parent's watch open, and its end does not trigger that watch") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  // The grandchild keeps running when the child is killed; it ends when the test closes its end of the pipe.
  Child child([&](Page& page) {
    if (::fork() == 0) {
      char byte;
      ::close(ends[1]);
      page.step = 1;
      while (::read(ends[0], &byte, 1) > 0) {
      }
      ::_exit(0);
    }
  });
  ::close(ends[0]);
  REQUIRE(comes([&] { return child.page().step == 1; }));
  const ProcessWatch line(child.pid()), own(::getpid());
  CHECK_FALSE(line.has_exited());
  child.kill(SIGKILL);
  CHECK(comes([&] { return line.has_exited(); }));
  CHECK_FALSE(own.has_exited());
  ::close(ends[1]);
}

}  // namespace cohort
