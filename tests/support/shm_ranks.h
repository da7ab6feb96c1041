#pragma once
// Ranks over shared memory for tests: threads of this process, or forked ones that may be killed and stopped.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "cohort/comm/shm/shm_transport.h"

namespace cohort {

/// Runs `body` in `size` threads, each with its own transport over one arena; throws the first exception in rank order.
inline void run_shm_threads(int size, const std::function<void(ShmTransport&)>& body, const ShmTuning& tuning = {},
                            double timeout_seconds = 30) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::exception_ptr> failures(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        auto arena = ShmArena::create(*store, rank, size);
        if (!arena) throw std::runtime_error("no arena");
        ShmTransport transport(arena, std::vector<int>(static_cast<size_t>(size), ::getpid()), timeout_seconds, tuning);
        body(transport);
      } catch (...) {
        failures[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

/// Forked ranks. Each runs `body` and reports what it returns, or the text of its exception.
class ForkedRanks {
 public:
  ForkedRanks(int size, double timeout_seconds, const std::function<std::string(ShmTransport&)>& body,
              ShmArena::Opening opening = ShmArena::Opening::kEither)
      : store_(::memfd_create("test-store", 0)) {
    auto* const pids = static_cast<int*>(
        ::mmap(nullptr, sizeof(int) * static_cast<size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    for (int rank = 0; rank < size; ++rank) {
      int ends[2];
      if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
      const pid_t pid = ::fork();
      if (pid == 0) {
        pids[rank] = ::getpid();
        const std::string text = outcome(rank, size, timeout_seconds, pids, body, opening);
        const ssize_t written = ::write(ends[1], text.data(), text.size());
        ::_exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
      }
      ::close(ends[1]);
      pids_.push_back(pid);
      reports_.push_back(ends[0]);
    }
    ::munmap(pids, sizeof(int) * static_cast<size_t>(size));
  }
  ~ForkedRanks() {
    for (const pid_t pid : pids_) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    for (const int end : reports_) ::close(end);
    ::close(store_);
  }
  void send_signal(int rank, int signal) const { ::kill(pids_[static_cast<size_t>(rank)], signal); }
  /// Blocks until the rank has ended; "" when it was killed.
  std::string report(int rank) const {
    std::string text;
    char part[256];
    for (ssize_t length; (length = ::read(reports_[static_cast<size_t>(rank)], part, sizeof part)) > 0;)
      text.append(part, static_cast<size_t>(length));
    return text;
  }

 private:
  std::string outcome(int rank, int size, double timeout_seconds, const int* pids, const std::function<std::string(ShmTransport&)>& body,
                      ShmArena::Opening opening) const {
    try {
      auto store = c10::make_intrusive<c10d::FileStore>("/proc/self/fd/" + std::to_string(store_), size);
      auto arena = ShmArena::create(*store, rank, size, opening);
      if (!arena) return "no arena";
      ShmTransport transport(arena, std::vector<int>(pids, pids + size), timeout_seconds);
      return body(transport);
    } catch (const std::exception& error) {
      return error.what();
    }
  }

  int store_;
  std::vector<pid_t> pids_;
  std::vector<int> reports_;
};

}  // namespace cohort
