#include "cohort/comm/shm/shm_transport.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstring>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/comm/rendezvous/local_rendezvous.h"
#include "tests/support/shm_ranks.h"

using namespace cohort;

namespace {

Call sum_of(at::Tensor tensor, const char* name = "") {
  return {.op = Op::kAllReduce,
          .type = tensor.scalar_type(),
          .input = tensor.data_ptr(),
          .output = tensor.data_ptr(),
          .count = static_cast<size_t>(tensor.numel()),
          .name = name};
}
void require(bool condition, const char* what) {
  if (!condition) fail(ErrorCode::kFailed, what);
}
template <typename Run>
std::string error_of(Run run) {
  try {
    run();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("more calls than slots may be started before the first is finished") {
  run_shm_threads(3, [](ShmTransport& transport) {
    constexpr size_t kCalls = 3 * ShmBoard::kNumSlots;
    for (const int64_t length : {1, 1000, 100000 / 8}) {
      std::vector<at::Tensor> tensors;
      std::vector<Call> calls;
      for (size_t i = 0; i < kCalls; ++i) tensors.push_back(at::full({length}, static_cast<double>(transport.rank() + 1), at::kDouble));
      for (const at::Tensor& tensor : tensors) calls.push_back(sum_of(tensor));
      for (Call& call : calls) transport.start(call);
      for (Call& call : calls) transport.finish(call);
      for (const at::Tensor& tensor : tensors) require(at::equal(tensor, at::full({length}, 6., at::kDouble)), "sum");
    }
  });
}

TEST_CASE("ready() tells whether all ranks have started the call") {
  run_shm_threads(2, [](ShmTransport& transport) {
    at::Tensor tensor = at::ones({10});
    Call sum = sum_of(tensor);
    if (transport.rank() == 0) {
      transport.start(sum);
      require(!transport.ready(sum), "rank 1 waits for the message");
      transport.send(nullptr, 0, 1, 0)->wait();
      while (!transport.ready(sum)) std::this_thread::yield();
    } else {
      transport.receive(nullptr, 0, 0, 0)->wait();
      transport.start(sum);
      require(transport.ready(sum), "rank 0 is there");
    }
    transport.finish(sum);
    require(at::equal(tensor, at::full({10}, 2.f)), "sum");
  });
}

TEST_CASE("calls that differ are refused on all ranks, and the group goes on") {
  run_shm_threads(3, [](ShmTransport& transport) {
    at::Tensor tensor = at::ones({transport.rank() == 2 ? 11 : 10});
    Call sum = sum_of(tensor, "weight");
    const std::string shape = error_of([&] { transport.finish(sum); });
    require(shape.find("rank 2") != std::string::npos && shape.find("weight") != std::string::npos, shape.c_str());
    // Rank 1 gives no name, so it fits both of the others; yet all three must refuse.
    at::Tensor equal = at::ones({20000});
    Call named = sum_of(equal, std::array{"a", "", "b"}[static_cast<size_t>(transport.rank())]);
    require(!error_of([&] { transport.finish(named); }).empty(), "other names");
    Call bits = sum_of(equal);
    bits.reduction = Reduction::kBitAnd;
    require(error_of([&] { transport.finish(bits); }).find("bit by bit") != std::string::npos, "no sense");
    Call uneven{.op = Op::kAllToAll, .type = at::kFloat, .input = equal.data_ptr(), .output = equal.data_ptr()};
    uneven.send_counts = {1, 2, 3};
    uneven.receive_counts = {1, 1, 1};
    require(error_of([&] { transport.finish(uneven); }).find("rank 0 sends 2 elements to rank 1, which expects 1") != std::string::npos,
            "counts");
    Call good = sum_of(equal);
    transport.finish(good);
    require(at::equal(equal, at::full({20000}, 3.f)), "the group goes on");
  });
}

TEST_CASE("an error of a call that start() had to finish is thrown by its own finish") {
  run_shm_threads(2, [](ShmTransport& transport) {
    at::Tensor tensor = at::ones({5});
    std::vector<Call> calls(ShmTransport::kMaxUnderWay + 2, sum_of(tensor));
    calls[0].reduction = Reduction::kBitOr;
    for (Call& call : calls) transport.start(call);
    require(!error_of([&] { transport.finish(calls[0]); }).empty(), "error");
    for (size_t i = 1; i < calls.size(); ++i) transport.finish(calls[i]);
    require(error_of([&] {
              Call one = sum_of(tensor), two = sum_of(tensor);
              transport.start(one);
              transport.start(two);
              const std::string text = error_of([&] { transport.finish(two); });
              require(text.find("before") != std::string::npos, "order");
              transport.finish(one);
              transport.finish(two);
            }).empty(),
            "calls in order");
  });
}

TEST_CASE("several groups at once") {
  auto outer = c10::make_intrusive<c10d::HashStore>();
  run_shm_threads(4, [&](ShmTransport& world) {
    // Two more groups: the even and the odd ranks.
    static c10::intrusive_ptr<c10d::Store> stores[2];
    if (world.rank() < 2) stores[world.rank()] = c10::make_intrusive<c10d::HashStore>();
    Call barrier;
    world.finish(barrier);
    auto arena = ShmArena::create(*stores[world.rank() % 2], world.rank() / 2, 2);
    ShmTransport half(arena, {::getpid(), ::getpid()}, 20);
    for (int i = 0; i < 50; ++i) {
      at::Tensor all = at::full({3000}, static_cast<float>(world.rank())), some = at::full({3000}, static_cast<float>(world.rank()));
      Call of_all = sum_of(all), of_some = sum_of(some);
      world.start(of_all);
      half.start(of_some);
      half.finish(of_some);
      world.finish(of_all);
      require(all[0].item<float>() == 6 && some[0].item<float>() == (world.rank() % 2 == 0 ? 2 : 4), "sums");
    }
    Call last;
    world.finish(last);
    if (world.rank() < 2) stores[world.rank()].reset();
  });
}

TEST_CASE("tuning is the same on all ranks and keeps within the board") {
  run_shm_threads(2, [](ShmTransport& transport) {
    const ShmTuning tuning = tune(transport);
    at::Tensor mine = at::tensor(
        {static_cast<int64_t>(tuning.flat_bytes), static_cast<int64_t>(tuning.direct_bytes), static_cast<int64_t>(tuning.tile_bytes)});
    at::Tensor sum = mine.clone();
    Call call = sum_of(sum);
    transport.finish(call);
    require(at::equal(sum, mine * 2), "the same");
    require(tuning.text().find("tiles of") != std::string::npos, "text");
    transport.set_tuning({size_t{1} << 40, size_t{1} << 40, size_t{1} << 40});
    require(transport.tuning().tile_bytes <= ShmBoard::kTileBytes && transport.tuning().flat_bytes < ShmBoard::kRingBytes, "bounds");
  });
}

// A forked child of a process with threads is more than ThreadSanitizer can follow.
#if !defined(__SANITIZE_THREAD__)

namespace {

using Clock = std::chrono::steady_clock;

/// Sums until something fails: in shared memory, in private memory and short ones in turn.
std::string sum_until_lost(ShmTransport& transport) {
  at::Tensor shared = transport.allocate(200000, at::kFloat), own = at::zeros({200000}), small = at::zeros({4});
  for (;;)
    for (at::Tensor tensor : {shared, own, small}) {
      Call call = sum_of(tensor);
      transport.finish(call);
    }
}

}  // namespace

TEST_CASE("a rank that is killed in the middle is named at once by all others") {
  ForkedRanks ranks(3, /*timeout_seconds=*/30, sum_until_lost);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const auto killed = Clock::now();
  ranks.send_signal(2, SIGKILL);
  CHECK(ranks.report(0) == "rank 2 has ended");
  CHECK(ranks.report(1) == "rank 2 has ended");
  CHECK(ranks.report(2) == "");
  // Far below the time-out, whatever else the machine does.
  CHECK(seconds_since(killed) < 10);
}

TEST_CASE("a rank that is stopped is named after the time-out") {
  ForkedRanks ranks(2, /*timeout_seconds=*/0.5, sum_until_lost);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  ranks.send_signal(1, SIGSTOP);
  CHECK(ranks.report(0) == "rank 1 did not come within 0.5 s");
}

TEST_CASE("a rank that waits for the message of a dead one gets an error") {
  ForkedRanks ranks(2, /*timeout_seconds=*/30, [](ShmTransport& transport) -> std::string {
    if (transport.rank() == 1) {
      int last_words = 5;
      transport.send(&last_words, sizeof last_words, 0, 1)->wait();
      ::raise(SIGKILL);
    }
    int word = 0;
    transport.receive(&word, sizeof word, 1, 1)->wait();
    if (word != 5) return "what was sent before the end is lost";
    transport.receive(&word, sizeof word, -1, 2)->wait();
    return "received";
  });
  CHECK(ranks.report(0) == "rank 1 has ended");
}

TEST_CASE("processes share memory through rank 0's descriptor or a socket") {
  for (const auto opening : {ShmArena::Opening::kProcess, ShmArena::Opening::kSocket}) {
    ForkedRanks ranks(
        3, 20,
        [](ShmTransport& transport) -> std::string {
          at::Tensor tensor = at::full({100000}, static_cast<float>(transport.rank()));
          Call call = sum_of(tensor);
          transport.finish(call);
          return at::equal(tensor, at::full({100000}, 3.f)) ? "right" : "wrong";
        },
        opening);
    for (int rank = 0; rank < 3; ++rank) CHECK(ranks.report(rank) == "right");
  }
}

TEST_CASE("a descriptor is handed over by name, and nobody serves another name") {
  DescriptorServer server("cohort/test/descriptor");
  const int file = ::memfd_create("handed-over", 0);
  REQUIRE(::write(file, "text", 4) == 4);
  std::thread thread([&] { CHECK(server.serve(file, 1, 10) == 1); });
  const int received = receive_descriptor_from("cohort/test/descriptor", 5);
  thread.join();
  char text[4] = {};
  REQUIRE(received >= 0);
  CHECK(::pread(received, text, 4, 0) == 4);
  CHECK(std::memcmp(text, "text", 4) == 0);
  CHECK(receive_descriptor_from("cohort/test/nobody", 5) == -1);
  CHECK(server.serve(file, 1, 0.01) == 0);
  CHECK_THROWS_AS(DescriptorServer("cohort/test/descriptor"), Error);
  ::close(received);
  ::close(file);
}

#endif
