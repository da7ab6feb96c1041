// Clusters: what exchanges cost, where ranks are; all by hand.

#include "cohort/plan/profile/cluster.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "tests/support/errors.h"

namespace cohort {
namespace {

/// Three hosts of two `a`, then one host of four `b`: ranks 0 to 9.
Cluster small_cluster() {
  Cluster cluster;
  cluster.name = "small";
  cluster.devices = {{.name = "a", .memory_bytes = 1000, .rates = {{"fp32", 100}}, .memory_bytes_per_second = 10},
                     {.name = "b", .memory_bytes = 500, .rates = {{"fp32", 50}, {"bf16", 80}}, .memory_bytes_per_second = 10}};
  cluster.hosts = {{3, 2, 0}, {1, 4, 1}};
  for (size_t i = 0; i < kNumExchanges; ++i) {
    const auto times = static_cast<double>(i + 1);
    cluster.inside.by_exchange[i] = {0.5 * times, i == 0 ? 0 : 0.25 * times, 100 * times};
    cluster.across.by_exchange[i] = {2 * times, i == 0 ? 0 : times, 10 * times};
  }
  return cluster;
}

TEST_CASE("what exchanges take, by hand") {
  const Cluster cluster = small_cluster();
  // Hand-over: latency 0.5 and 1000 bytes at 100 a second; across 2 and at 10. The number of ranks is nothing to it.
  CHECK(exchange_seconds(cluster, Exchange::kHandOver, 2, false, 1000) == doctest::Approx(10.5));
  CHECK(exchange_seconds(cluster, Exchange::kHandOver, 2, true, 1000) == doctest::Approx(102));
  // All-reduce among 4: 1 x 2, 0.5 x 4, and 2 x 3/4 of the bytes at 200. Across: 4 x 2, 2 x 4, 1500 at 20.
  CHECK(exchange_seconds(cluster, Exchange::kAllReduce, 4, false, 1000) == doctest::Approx(2 + 2 + 7.5));
  CHECK(exchange_seconds(cluster, Exchange::kAllReduce, 4, true, 1000) == doctest::Approx(8 + 8 + 75));
  // All-gather among 2: 1.5 x 1, 0.75 x 2, half of the bytes at 300. Reduce-scatter among 8: 2 x 3, 1 x 8, 7/8 of them at 400.
  CHECK(exchange_seconds(cluster, Exchange::kAllGather, 2, false, 600) == doctest::Approx(1.5 + 1.5 + 1));
  CHECK(exchange_seconds(cluster, Exchange::kReduceScatter, 8, false, 800) == doctest::Approx(6 + 8 + 1.75));
  CHECK(exchange_seconds(cluster, Exchange::kReduceScatter, 8, true, 800) == doctest::Approx(24 + 32 + 17.5));
  // One rank alone has nothing to exchange, and without a limit bytes are free.
  for (const Exchange exchange : {Exchange::kHandOver, Exchange::kAllReduce, Exchange::kAllGather, Exchange::kReduceScatter})
    CHECK(exchange_seconds(cluster, exchange, 1, true, 1e9) == 0);
  Cluster unlimited = cluster;
  unlimited.inside.by_exchange[1].bytes_per_second = 0;
  CHECK(exchange_seconds(unlimited, Exchange::kAllReduce, 4, false, 1e18) == doctest::Approx(4));
}

TEST_CASE("ranks follow each other host by host") {
  const Cluster cluster = small_cluster();
  CHECK(cluster.num_devices() == 10);
  CHECK(cluster.is_mixed());
  std::vector<int> devices, hosts;
  for (int rank = 0; rank < 10; ++rank) devices.push_back(cluster.device_of_rank(rank)), hosts.push_back(cluster.host_of_rank(rank));
  CHECK(devices == std::vector<int>{0, 0, 0, 0, 0, 0, 1, 1, 1, 1});
  CHECK(hosts == std::vector<int>{0, 0, 1, 1, 2, 2, 3, 3, 3, 3});
  CHECK(error_or_none([&] { cluster.device_of_rank(10); }).find("10 devices") != std::string::npos);
  CHECK(error_or_none([&] { cluster.host_of_rank(10); }).find("10 devices") != std::string::npos);
  CHECK_FALSE(leaves_host(cluster, 0, 1, 2));
  CHECK(leaves_host(cluster, 1, 1, 2));
  CHECK(leaves_host(cluster, 0, 2, 2));
  CHECK_FALSE(leaves_host(cluster, 6, 1, 4));
  CHECK_FALSE(leaves_host(cluster, 6, 3, 2));
  CHECK(leaves_host(cluster, 5, 1, 2));
  CHECK_FALSE(leaves_host(cluster, 1, 5, 1));  // One rank is on one host.
  CHECK(cluster.devices[1].flops_per_second("bf16") == 80);
  CHECK(error_or_none([&] { cluster.devices[0].flops_per_second("bf16"); }) == "device 'a' has no rate for bf16; it has: fp32");
}

TEST_CASE("the first devices of a cluster") {
  const Cluster cluster = small_cluster();
  const auto groups = [&](int num_devices) {
    const Cluster first = first_devices(cluster, num_devices);
    CHECK(first.num_devices() == num_devices);
    for (int rank = 0; rank < num_devices; ++rank) {
      CHECK(first.device_of_rank(rank) == cluster.device_of_rank(rank));
      CHECK(first.host_of_rank(rank) == cluster.host_of_rank(rank));
    }
    std::string out;
    for (const HostGroup& group : first.hosts) out += concat(group.num_hosts, "x", group.devices_per_host, " ");
    return out;
  };
  CHECK(groups(1) == "1x1 ");
  CHECK(groups(2) == "1x2 ");
  CHECK(groups(5) == "2x2 1x1 ");
  CHECK(groups(6) == "3x2 ");
  CHECK(groups(7) == "3x2 1x1 ");
  CHECK(groups(10) == "3x2 1x4 ");
  for (const int wrong : {0, 11}) CHECK(error_or_none([&] { first_devices(cluster, wrong); }).find("1 to 10 devices") != std::string::npos);
}

TEST_CASE("hosts whose devices are not alike: kinds by rank, in parts of the cluster, and through a file") {
  Cluster cluster = small_cluster();
  cluster.hosts = {{2, 3, 1, {1, 0, 0}}, {1, 1, 0}};
  CHECK(cluster.num_devices() == 7);
  CHECK(cluster.is_mixed());
  const std::vector<int> kinds = {1, 0, 0, 1, 0, 0, 0}, hosts = {0, 0, 0, 1, 1, 1, 2};
  for (int rank = 0; rank < 7; ++rank) {
    CHECK(cluster.device_of_rank(rank) == kinds[static_cast<size_t>(rank)]);
    CHECK(cluster.host_of_rank(rank) == hosts[static_cast<size_t>(rank)]);
  }
  const Cluster part = first_devices(cluster, 5);
  CHECK(part.num_devices() == 5);
  for (int rank = 0; rank < 5; ++rank) CHECK(part.device_of_rank(rank) == kinds[static_cast<size_t>(rank)]);
  CHECK(!first_devices(cluster, 1).is_mixed());
  const Cluster again = cluster_from_json(to_json(cluster), "again");
  CHECK(to_json(again).dump() == to_json(cluster).dump());
  CHECK(again.hosts[0].mixed == std::vector{1, 0, 0});
  CHECK(again.hosts[0].device == 1);
}

}  // namespace
}  // namespace cohort
