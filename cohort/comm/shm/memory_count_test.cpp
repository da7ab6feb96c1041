// Counts are per process, so every test runs in its own.

#include "cohort/comm/shm/memory_count.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <c10/core/CPUAllocator.h>
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>

#include "cohort/base/fail.h"
#include "cohort/comm/shm/shm_arena.h"
#include "tests/support/shm_ranks.h"

namespace cohort {
namespace {

void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what + concat(" (held ", counted_memory_bytes(), ", peak ", peak_counted_memory_bytes(), ")"));
}
void require_held(int64_t bytes, const std::string& when) { require(counted_memory_bytes() == bytes, concat(when, ": expected ", bytes)); }

/// Runs `body` in a fork; returns its error, or "".
std::string in_process(const std::function<void()>& body) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    std::string text;
    try {
      at::set_num_threads(1);
      body();
    } catch (const std::exception& error) {
      text = error.what();
    }
    const ssize_t written = ::write(ends[1], text.data(), text.size());
    ::_exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  std::string text;
  char part[256];
  for (ssize_t length; (length = ::read(ends[0], part, sizeof part)) > 0;) text.append(part, static_cast<size_t>(length));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? text : concat("ended with status ", status, ": ", text);
}

/// The error of an allocation that must be refused.
std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    require(error.code() == ErrorCode::kEnvironment, "another code");
    return error.what();
  }
  throw std::runtime_error("was not refused");
}

TEST_CASE("tensors count with their exact bytes and are counted down by whoever frees them") {
  CHECK(in_process([] {
          const at::Tensor before = at::ones({1000});
          require_held(0, "not asked for");
          limit_memory(0);
          require_held(0, "allocated before");
          at::Tensor a = at::empty({1000}, at::kFloat), b = at::empty({3, 5}, at::kDouble), none = at::empty({0});
          require_held(4000 + 120, "two tensors");
          const at::Tensor view = a.narrow(0, 10, 10);
          a.reset();
          require_held(4120, "a view keeps the storage");
          b.resize_({100});
          require_held(4000 + 800, "resized");
          std::thread([moved = std::move(b)]() mutable { moved.reset(); }).join();
          require_held(4000, "freed by another thread");
          void* const raw = c10::GetCPUAllocator()->raw_allocate(77);
          require_held(4077, "raw");
          c10::GetCPUAllocator()->raw_deallocate(raw);
          require_held(4000, "raw, freed");
          require(peak_counted_memory_bytes() >= 4120 + 800, "the peak: both blocks of the resized tensor");
        }) == "");
}

TEST_CASE("memory of before the count goes back to where it came from") {
  CHECK(in_process([] {
          void* const raw = c10::GetCPUAllocator()->raw_allocate(100);
          at::Tensor before = at::ones({1000});
          limit_memory(1000);
          c10::GetCPUAllocator()->raw_deallocate(raw);
          before.reset();
          require_held(0, "freed");
          require(peak_counted_memory_bytes() == 0, "peak");
        }) == "");
}

TEST_CASE("what would pass the limit is refused, and the program goes on") {
  CHECK(in_process([] {
          limit_memory(10'000);
          at::Tensor a = at::empty({2000}, at::kFloat);
          const std::string text = refusal([] { at::empty({501}, at::kFloat); });
          for (const char* part : {"2,004 bytes", "8,000 (7.8 KiB) are held", "the limit is 10,000"})
            require(text.find(part) != std::string::npos, text);
          require_held(8000, "refused");
          const at::Tensor exact = at::empty({500}, at::kFloat);
          require_held(10'000, "up to the limit");
          refusal([] { at::empty({1}, at::kByte); });
          a.reset();
          at::empty({2000}, at::kFloat).fill_(1);
          limit_memory(0);
          require_held(2000, "without a limit");
          at::empty({100'000}, at::kFloat).fill_(1);
          require(peak_counted_memory_bytes() == 402'000, "peak");
        }) == "");
}

TEST_CASE("the error leaves operators, backward and threads with its type, and nothing stays counted") {
  CHECK(in_process([] {
          limit_memory(0);
          {
            at::Tensor x = at::ones({100, 100}).set_requires_grad(true);
            const at::Tensor y = at::ones({100, 100});
            refusal([&] {
              limit_memory(counted_memory_bytes() + 39'000);
              at::matmul(y, y);
            });
            limit_memory(0);
            const at::Tensor loss = (x * x).sum();
            limit_memory(counted_memory_bytes() + 1000);
            refusal([&] { loss.backward(); });
            require(!x.grad().defined(), "no gradient");
            std::exception_ptr of_thread;
            std::thread([&] {
              try {
                refusal([&] { at::mul(y, y); });
              } catch (...) {
                of_thread = std::current_exception();
              }
            }).join();
            if (of_thread) std::rethrow_exception(of_thread);
            limit_memory(0);
            (x * x).sum().backward();
            require(x.grad().sum().item<float>() == 20'000, "a later backward");
          }
          require_held(0, "all gone");
        }) == "");
}

TEST_CASE("threads: nothing is lost, and the limit holds") {
  CHECK(in_process([] {
          constexpr int kThreads = 4;
          limit_memory(kThreads * 1000 + 500);
          std::vector<std::thread> threads;
          std::atomic<int> num_refused{0};
          for (int thread = 0; thread < kThreads; ++thread)
            threads.emplace_back([&] {
              for (int i = 0; i < 3000; ++i) {
                try {
                  const at::Tensor one = at::empty({600}, at::kByte), two = at::empty({500 + i % 200}, at::kByte);
                } catch (const Error&) {
                  ++num_refused;
                }
              }
            });
          for (std::thread& thread : threads) thread.join();
          require_held(0, "threads have ended");
          require(peak_counted_memory_bytes() <= kThreads * 1000 + 500, "peak");
          limit_memory(100);
          refusal([] { at::empty({101}, at::kByte); });
        }) == "");
}

TEST_CASE("ranks count what they take from the shared arena, not what their peers take") {
  const ForkedRanks ranks(2, 20, [](ShmTransport& transport) -> std::string {
    at::set_num_threads(1);
    const auto arena = transport.arena();
    limit_memory(0);
    const int64_t start = counted_memory_bytes();
    const int64_t own = arena->rank() == 0 ? 8192 : 40960;
    std::byte* const local = arena->allocate_local(static_cast<size_t>(own - 100));
    require_held(start + own, "local memory, whole pages");
    at::Tensor shared = arena->allocate(2048, at::kFloat);
    require_held(start + own + 8192, "a shared tensor");
    limit_memory(counted_memory_bytes() + 4096);
    refusal([&] { arena->allocate_local(4097); });
    require_held(start + own + 8192, "refused");
    arena->release_local(arena->allocate_local(4096), 4096);
    shared.reset();
    arena->release_local(local, static_cast<size_t>(own - 100));
    require_held(start, "given back");
    return "done";
  });
  CHECK(ranks.report(0) == "done");  // A rank that is killed says nothing.
  CHECK(ranks.report(1) == "done");  // A rank that is killed says nothing.
}

TEST_CASE("an arena that ends gives back what it reserved, also where the count began later") {
  CHECK(in_process([] {
          auto store = c10::make_intrusive<c10d::HashStore>();
          auto arena = ShmArena::create(*store, 0, 1);
          require(arena != nullptr, "no arena");
          arena->reserve(5000);
          limit_memory(0);
          require_held(8192, "reserved before");
          arena->reserve(1);
          require_held(8192 + 4096, "reserved");
          arena.reset();
          require_held(0, "ended");
        }) == "");
}

TEST_CASE("a block that another rank still reads is no longer counted where its owner ends, nor counted down by who releases it") {
  CHECK(in_process([] {
          auto store = c10::make_intrusive<c10d::HashStore>();
          auto arena = ShmArena::create(*store, 0, 1);
          require(arena != nullptr, "no arena");
          limit_memory(0);
          std::byte* data = nullptr;
          {
            ShmBlocks blocks(arena);
            data = blocks.take(8000);
            require_held(8192, "taken");
          }
          require_held(0, "left");
          ShmBlocks::release(*arena, data);
          require_held(0, "released by its reader");
        }) == "");
}

TEST_CASE("invalid limits are refused") {
  CHECK_THROWS_AS(limit_memory(-1), Error);
  CHECK(counted_memory_bytes() == 0);
  CHECK(peak_counted_memory_bytes() == 0);
}

}  // namespace
}  // namespace cohort
