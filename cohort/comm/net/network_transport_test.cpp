#include "cohort/comm/net/network_transport.h"

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cmath>
#include <exception>
#include <functional>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "cohort/base/fail.h"
#include "cohort/base/random.h"
#include "cohort/comm/net/gloo.h"
#include "tests/support/text.h"
#include "tests/support/transport_oracle.h"

namespace cohort {
namespace {

/// Text of the exception of each rank, "" for none.
std::vector<std::string> run_on_gloo(int num_ranks, const std::function<void(NetworkTransport&)>& body, double timeout_seconds = 20) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> texts(static_cast<size_t>(num_ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        const auto transport = make_gloo_transport(store, rank, num_ranks, "127.0.0.1", timeout_seconds);
        body(*transport);
      } catch (const std::exception& error) {
        texts[static_cast<size_t>(rank)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return texts;
}

void check_all_pass(int num_ranks, const std::function<void(NetworkTransport&)>& body) {
  for (const std::string& text : run_on_gloo(num_ranks, body)) CHECK(text == "");
}

void run(Transport& transport, Call call) {
  transport.start(call);
  transport.finish(call);
}

Call all_reduce_of(std::vector<float>& values, const char* name = "weights") {
  Call call;
  call.op = Op::kAllReduce;
  call.type = at::kFloat;
  call.input = call.output = values.data();
  call.count = values.size();
  call.name = name;
  call.sequence = 1;
  return call;
}

TEST_CASE("gloo: every operation, type and size gives the oracle's answer") {
  const auto check = [](int num_ranks, const OracleOptions& options) {
    check_all_pass(num_ranks, [&](NetworkTransport& transport) { check_transport(transport, options); });
  };
  check(1, {.counts = {0, 1009}});
  check(2, {.counts = {1, 1009}});
  check(3, {.counts = {0, 46, 1009}, .types = {at::kFloat, at::kComplexFloat}});
  check(4, {.counts = {11, 12}, .types = {at::kInt}});
  check(5, {.counts = {1009}, .types = {at::kFloat}});
  for (const int num_ranks : {6, 7, 8}) check(num_ranks, {.counts = {1, 5, 7}, .types = {at::kHalf}});
}

TEST_CASE("gloo: sizes around those at which the algorithm changes") {
  constexpr size_t kThreshold = NetworkTransport::kSmallBytes / 4;
  const OracleOptions options{.counts = {kThreshold - 1, kThreshold, kThreshold + 1}, .types = {at::kFloat}};
  check_all_pass(3, [&](NetworkTransport& transport) { check_transport(transport, options); });
}

TEST_CASE("sums are added in rank order, bitwise, whatever their size") {
  const auto value = [](int rank, size_t i) {
    return static_cast<float>((unit_interval(random_bits(7, rank, i)) - 0.5) *
                              std::pow(10.0, static_cast<double>(random_bits(9, rank, i) % 7)));
  };
  for (const int num_ranks : {2, 3, 5})
    check_all_pass(num_ranks, [&](NetworkTransport& transport) {
      for (const size_t count : {size_t{3}, size_t{1009}, size_t{100003}}) {
        std::vector<float> values(count), expected(count);
        for (size_t i = 0; i < count; ++i) {
          values[i] = value(transport.rank(), i);
          expected[i] = value(0, i);
          for (int rank = 1; rank < num_ranks; ++rank) expected[i] += value(rank, i);
        }
        run(transport, all_reduce_of(values));
        if (values != expected) throw std::runtime_error(concat(count, " elements on ", num_ranks, " ranks"));
      }
    });
}

TEST_CASE("calls that differ end in an error on every rank, and the group goes on") {
  using Change = std::function<void(Call&)>;
  const std::vector<std::pair<const char*, Change>> changes = {
      {"shape", [](Call& call) { call.count -= 1; }},      {"skipped", [](Call& call) { call.op = Op::kBroadcast; }},
      {"type", [](Call& call) { call.type = at::kInt; }},  {"reduction", [](Call& call) { call.reduction = Reduction::kMax; }},
      {"skipped", [](Call& call) { call.name = "bias"; }},
  };
  const auto texts = run_on_gloo(3, [&](NetworkTransport& transport) {
    std::vector<float> values(50000, 1.0f);
    for (const auto& [word, change] : changes) {
      Call call = all_reduce_of(values);
      if (transport.rank() == 1) change(call);
      std::string text;
      try {
        run(transport, call);
      } catch (const Error& error) {
        text = error.what();
      }
      if (text.find("rank 1") == std::string::npos || text.find(word) == std::string::npos)
        throw std::runtime_error(concat("expected '", word, "' of rank 1, got '", text, "'"));
    }
    run(transport, all_reduce_of(values));
    if (values.front() != 3.0f || values.back() != 3.0f) throw std::runtime_error("a sum after the mistakes is wrong");
  });
  for (const std::string& text : texts) CHECK(text == "");
}

TEST_CASE("an uneven all-to-all whose counts differ ends in an error on every rank") {
  const auto texts = run_on_gloo(3, [](NetworkTransport& transport) {
    std::vector<float> input(100), output(100);
    Call call;
    call.op = Op::kAllToAll;
    call.type = at::kFloat;
    call.input = input.data();
    call.output = output.data();
    call.send_counts = {1, 2, 3};
    call.receive_counts.assign(3, static_cast<size_t>(transport.rank() + 1));
    if (transport.rank() == 2) call.receive_counts[0] = 4;
    run(transport, call);
  });
  for (const std::string& text : texts) CHECK(text.find("rank 0 sends 3 elements to rank 2, which expects 4") != std::string::npos);
}

TEST_CASE("what cannot be reduced is refused on every rank") {
  for (const std::string& text : run_on_gloo(2, [](NetworkTransport& transport) {
         std::vector<float> values(50000);
         Call call = all_reduce_of(values);
         call.reduction = Reduction::kBitXor;
         run(transport, call);
       }))
    CHECK(text.find("xor") != std::string::npos);
}

TEST_CASE("a message of another size than expected ends with the time-out, and not the process") {
  const auto texts = run_on_gloo(
      2,
      [](NetworkTransport& transport) {
        std::vector<char> data(100000);
        if (transport.rank() == 0) return transport.send(data.data(), 100000, 1, 3)->wait();
        transport.receive(data.data(), 50000, 0, 3)->wait();
      },
      5);  // Also for meeting, beside a busy core.
  CHECK_MESSAGE(texts[1].find("no message of 50000 bytes with tag 3 from rank 0") != std::string::npos, texts[1]);
}

TEST_CASE("gloo: a forged message into a buffer of the older kind, which Cohort does not use, writes nowhere") {
  // Gloo's own words: bytes in all, kind, slot, place at the sender, length, place at the receiver. Before LibTorch 2.14 it adds the last
  // two without looking for an overflow, so that 8 bytes at place -8 are inside of every such buffer (SECURITY.md).
  constexpr uint64_t kOlderKind = 0, kSlot = 0xc1ULL << 56 | 7ULL << 36 | 8;
  const std::array<uint64_t, 7> forged = {56, kOlderKind, kSlot, 0, 8, ~0ULL - 7, 666};
  std::atomic<int> num_forged = 0;
  const auto texts = run_on_gloo(
      2,
      [&](NetworkTransport& transport) {
        std::array<uint64_t, 3> memory = {1, 2, 3};
        const auto message = transport.receive(&memory[1], 8, 1 - transport.rank(), 7);
        std::array<char, 2> both{};
        transport.all_gather(both.data(), "x", 1);
        for (int socket = 0; socket < 1024 && transport.rank() == 0; ++socket) {
          sockaddr_storage peer{};
          socklen_t length = sizeof peer;
          if (::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &length) != 0 || peer.ss_family != AF_INET) continue;
          num_forged += ::send(socket, forged.data(), sizeof forged, MSG_NOSIGNAL) == sizeof forged;
        }
        try {
          message->wait();
        } catch (const std::exception& error) {
          throw std::runtime_error(memory == std::array<uint64_t, 3>{1, 2, 3} ? error.what() : "memory was written");
        }
      },
      2);
  CHECK(num_forged >= 2);  // Both ends of the one connection are here.
  CHECK(contains(texts[0] + texts[1], "no message of 8 bytes with tag 7 from rank"));
  for (const std::string& text : texts) {
    INFO(text);
    CHECK((contains(text, "no message of 8 bytes") || contains(text, "closed its connection")));
  }
}

TEST_CASE("messages to oneself, to nobody and with a tag out of range are refused") {
  check_all_pass(2, [](NetworkTransport& transport) {
    std::vector<float> values(10);
    run(transport, all_reduce_of(values));  // Whoever leaves before all have connected ends their connecting.
    for (const auto& [peer, tag] :
         std::vector<std::pair<int, int>>{{transport.rank(), 0}, {2, 0}, {-1, 0}, {1 - transport.rank(), 1 << 20}}) {
      bool refused = false;
      try {
        transport.send(nullptr, 0, peer, tag);
      } catch (const Error& error) {
        refused = error.code() == ErrorCode::kBadInput;
      }
      if (!refused) throw std::runtime_error(concat("peer ", peer, ", tag ", tag));
    }
  });
}

TEST_CASE("a rank that leaves or never comes is named") {
  auto texts = run_on_gloo(3, [](NetworkTransport& transport) {
    std::vector<float> values(10);
    run(transport, all_reduce_of(values));  // Whoever leaves before all have connected ends their connecting.
    if (transport.rank() != 2) run(transport, all_reduce_of(values));
  });
  CHECK((texts[0] + texts[1]).find("rank 2 closed its connection") != std::string::npos);
  CHECK(texts[2] == "");
  texts = run_on_gloo(
      2,
      [](NetworkTransport& transport) {
        std::vector<float> values(10);
        if (transport.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(5));
        if (transport.rank() == 0) run(transport, all_reduce_of(values));
      },
      3);
  CHECK_MESSAGE(texts[0].find("from rank 1 within 3 s") != std::string::npos, texts[0]);
}

}  // namespace
}  // namespace cohort
