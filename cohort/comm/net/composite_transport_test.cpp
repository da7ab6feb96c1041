#include "cohort/comm/net/composite_transport.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <latch>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "cohort/base/fail.h"
#include "cohort/base/random.h"
#include "cohort/comm/net/gloo.h"
#include "cohort/comm/shm/shm_arena.h"
#include "cohort/comm/shm/shm_transport.h"
#include "tests/support/transport_oracle.h"

namespace cohort {
namespace {

using Hosts = std::vector<int>;

/// Rank's end of a composite of simulated hosts: threads that share an arena a host, or talk over Gloo inside it as well.
std::unique_ptr<CompositeTransport> connect(const c10::intrusive_ptr<c10d::Store>& store, int rank, const HostMap& hosts,
                                            double timeout_seconds, bool share_memory) {
  const auto part = [&](const std::string& name, int part_rank, int part_size, double seconds) {
    return make_gloo_transport(c10::make_intrusive<c10d::PrefixStore>(name, store), part_rank, part_size, "127.0.0.1", seconds);
  };
  const int host = hosts.host_of(rank), num_here = static_cast<int>(hosts.ranks_of(host).size());
  CompositeTransport::Parts parts;
  if (num_here > 1 && share_memory) {
    c10d::PrefixStore arena_store(concat("host", host), store);
    parts.inside = std::make_unique<ShmTransport>(ShmArena::create(arena_store, hosts.place_of(rank), num_here),
                                                  std::vector<int>(static_cast<size_t>(num_here), ::getpid()), timeout_seconds * 2);
  } else if (num_here > 1) {
    parts.inside = part(concat("host", host), hosts.place_of(rank), num_here, timeout_seconds * 2);
  }
  if (hosts.place_of(rank) == 0) parts.between = part("between", host, hosts.num_hosts(), timeout_seconds);
  parts.all = part("all", rank, hosts.num_ranks(), timeout_seconds);
  return std::make_unique<CompositeTransport>(rank, hosts, std::move(parts));
}

std::vector<std::string> run_on(const Hosts& host_of_rank, const std::function<void(CompositeTransport&)>& body, bool share_memory = true,
                                double timeout_seconds = 20) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const HostMap hosts(host_of_rank);
  std::vector<std::string> texts(host_of_rank.size());
  std::latch connected(hosts.num_ranks());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < hosts.num_ranks(); ++rank)
    threads.emplace_back([&, rank] {
      std::string& text = texts[static_cast<size_t>(rank)];
      const auto note_errors = [&](const auto& act) {
        try {
          act();
        } catch (const std::exception& error) {
          text = error.what();
        }
      };
      std::unique_ptr<CompositeTransport> transport;
      note_errors([&] { transport = connect(store, rank, hosts, timeout_seconds, share_memory); });
      connected.arrive_and_wait();  // Nobody leaves while others still connect.
      if (transport) note_errors([&] { body(*transport); });
    });
  for (std::thread& thread : threads) thread.join();
  return texts;
}

void check_all_pass(const Hosts& hosts, const std::function<void(CompositeTransport&)>& body, bool share_memory = true) {
  for (const std::string& text : run_on(hosts, body, share_memory)) CHECK(text == "");
}

Call all_reduce_of(std::vector<float>& values) {
  Call call;
  call.op = Op::kAllReduce;
  call.type = at::kFloat;
  call.input = call.output = values.data();
  call.count = values.size();
  call.name = "weights";
  return call;
}

TEST_CASE("a map of hosts") {
  const HostMap hosts({7, 3, 7, 7, 3, 9});
  CHECK(hosts.num_hosts() == 3);
  CHECK(hosts.ranks_of(0) == std::vector<int>{0, 2, 3});
  CHECK(hosts.leader_of(1) == 1);
  CHECK(hosts.place_of(3) == 2);
  CHECK(!hosts.even());
  CHECK(hosts.runs_of(0).size() == 2);
  CHECK(hosts.runs_of(0)[1].first == 2);
  CHECK(hosts.runs_of(0)[1].count == 2);
  CHECK(hosts.name_of(1) == "host 1 (ranks 1 and 4)");
}

TEST_CASE("every operation gives the oracle's answer, wherever the ranks are") {
  const OracleOptions options{.counts = {1, 1009}, .types = {at::kFloat}, .from_any = false},
      brief{.counts = {1009}, .types = {at::kFloat}, .from_any = false};
  check_all_pass({0, 1}, [&](CompositeTransport& transport) { check_transport(transport, options); });
  check_all_pass({0, 0, 1}, [&](CompositeTransport& transport) { check_transport(transport, options); });
  check_all_pass({0, 1, 0, 1}, [&](CompositeTransport& transport) { check_transport(transport, brief); });
  check_all_pass({0, 1, 0}, [&](CompositeTransport& transport) { check_transport(transport, brief); }, false);
  check_all_pass({1, 0, 0, 2, 1}, [&](CompositeTransport& transport) { check_transport(transport, brief); });
  check_all_pass({0, 1, 2, 0, 0, 2, 1, 1}, [](CompositeTransport& transport) {
    check_transport(transport, {.counts = {5, 6}, .types = {at::kFloat}, .from_any = false});  // 8 pieces fit into a frame, or not.
  });
  check_all_pass({0, 1, 1}, [](CompositeTransport& transport) {
    constexpr size_t kThreshold = NetworkTransport::kSmallBytes / 4;
    check_transport(transport, {.counts = {kThreshold - 1, kThreshold, kThreshold + 1}, .types = {at::kInt}, .from_any = false});
    check_transport(transport, {.counts = {9001}, .types = {at::kHalf, at::kComplexFloat}, .from_any = false});
  });
}

TEST_CASE("sums go first over the ranks of a host, then over the hosts; small ones in rank order") {
  const auto value = [](int rank, size_t i) {
    return static_cast<float>((unit_interval(random_bits(7, rank, i)) - 0.5) * (i % 3 ? 1e4 : 1));
  };
  check_all_pass({0, 1, 0, 1, 0}, [&](CompositeTransport& transport) {
    for (const size_t count : {size_t{40}, size_t{5003}}) {
      std::vector<float> values(count), expected(count);
      for (size_t i = 0; i < count; ++i) {
        const auto x = [&](int rank) { return value(rank, i); };
        values[i] = x(transport.rank());
        expected[i] = count == 40 ? (((x(0) + x(1)) + x(2)) + x(3)) + x(4) : ((x(0) + x(2)) + x(4)) + (x(1) + x(3));
      }
      Call call = all_reduce_of(values);
      transport.finish(call);
      if (values != expected) throw std::runtime_error(concat(count, " elements"));
    }
  });
}

TEST_CASE("an average of half-precision numbers does not overflow on the way") {
  check_all_pass({0, 0, 0, 1}, [](CompositeTransport& transport) {
    std::vector<c10::Half> values(1000, c10::Half(60000.0f));
    Call call;
    call.op = Op::kAllReduce;
    call.reduction = Reduction::kAverage;
    call.type = at::kHalf;
    call.input = call.output = values.data();
    call.count = values.size();
    transport.finish(call);
    if (std::abs(static_cast<float>(values[999]) - 60000.0f) > 64) throw std::runtime_error(concat(static_cast<float>(values[999])));
  });
}

TEST_CASE("a call that differs on another host ends in the same error on every rank, and the group goes on") {
  check_all_pass({0, 1, 0, 1}, [](CompositeTransport& transport) {
    std::vector<float> values(50000, 1.0f);
    for (const int change : {0, 1, 2}) {
      Call call = all_reduce_of(values);
      if (transport.rank() == 3 && change == 0) call.count -= 1;
      if (transport.rank() == 3 && change == 1) call.op = Op::kBroadcast;
      if (transport.rank() == 3 && change == 2) call.type = at::kInt;
      std::string text;
      try {
        transport.finish(call);
      } catch (const Error& error) {
        text = error.what();
      }
      if (text.find("rank 3") == std::string::npos) throw std::runtime_error(concat("change ", change, ": '", text, "'"));
    }
    Call call = all_reduce_of(values);
    transport.finish(call);
    if (values.back() != 4.0f) throw std::runtime_error("a sum after the mistakes is wrong");
  });
}

TEST_CASE("a lost host is named on every rank that is left") {
  const auto texts = run_on({0, 0, 1, 1}, [](CompositeTransport& transport) {
    std::vector<float> values(50000);
    Call call = all_reduce_of(values);
    if (transport.rank() < 2) transport.finish(call);
  });
  CHECK(texts[0].find("host 1 (ranks 2 and 3) closed its connection") != std::string::npos);
  CHECK(texts[1] == texts[0]);
}

TEST_CASE("errors inside a host name the ranks of the group, not their positions in the host") {
  // Ranks 1 and 3 have index 0 and 1 on their host.
  const auto texts = run_on(
      {0, 1, 0, 1},
      [](CompositeTransport& transport) {
        std::vector<float> values(50000);
        Call call = all_reduce_of(values);
        if (transport.rank() != 3) transport.finish(call);
      },
      true, 0.3);
  CHECK(texts[1].find("rank 3 did not come within") == 0);
  CHECK(texts[0].find("host 1 (ranks 1 and 3)") != std::string::npos);
  CHECK(texts[2] == texts[0]);

  check_all_pass({0, 1, 0, 1}, [](CompositeTransport& transport) {
    std::vector<char> data(9);
    if (transport.rank() == 1) transport.send(data.data(), 5, 3, 7)->wait();
    std::string text;
    try {
      if (transport.rank() == 3) transport.receive(data.data(), 9, 1, 7)->wait();
    } catch (const std::exception& error) {
      text = error.what();
    }
    if (transport.rank() == 3 && text != "rank 1 sent 5 bytes with tag 7, rank 3 expects 9") throw std::runtime_error(text);
  });
}

TEST_CASE("groups of a host that do not fit, and messages where none can be sent, are refused") {
  CHECK_THROWS_AS(CompositeTransport(0, HostMap({0, 0}), {}), Error);
  CHECK_THROWS_AS(CompositeTransport(0, HostMap({0, 1}), {}), Error);
  CompositeTransport alone(0, HostMap({0}), {});
  CHECK_THROWS_AS(alone.send(nullptr, 0, 0, 0), Error);
  CHECK_THROWS_AS(alone.receive(nullptr, 0, -1, 0), Error);
  check_all_pass({0, 1, 1}, [](CompositeTransport& transport) {
    std::string text;
    try {
      transport.receive(nullptr, 0, -1, 0);
    } catch (const Error& error) {
      text = error.what();
    }
    if (text.find("any rank") == std::string::npos || text.find("name another rank") == std::string::npos) throw std::runtime_error(text);
  });
  check_transport(alone, {.counts = {0, 1009}, .types = {at::kFloat}, .from_any = false});
}

}  // namespace
}  // namespace cohort
