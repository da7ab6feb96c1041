#include "cohort/plan/profile/cluster.h"

#include <algorithm>
#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {

const std::array<std::string, kNumExchanges>& exchange_names() {
  static const std::array<std::string, kNumExchanges> kNames = {"hand_over", "all_reduce", "all_gather", "reduce_scatter"};
  return kNames;
}

bool DeviceKind::has(const std::string& precision) const {
  return std::any_of(rates.begin(), rates.end(), [&](const Rate& rate) { return rate.precision == precision; });
}

double DeviceKind::flops_per_second(const std::string& precision) const {
  std::vector<std::string> known;
  for (const Rate& rate : rates) {
    if (rate.precision == precision) return rate.flops_per_second;
    known.push_back(rate.precision);
  }
  fail(ErrorCode::kBadInput, "device '", name, "' has no rate for ", precision, "; it has: ", join(known, " "));
}

int Cluster::num_devices() const {
  int64_t count = 0;
  for (const HostGroup& group : hosts) count += static_cast<int64_t>(group.num_hosts) * group.devices_per_host;
  return static_cast<int>(count);
}

namespace {

void check_rank(const Cluster& cluster, int rank) {
  if (rank < 0 || rank >= cluster.num_devices())
    fail(ErrorCode::kBadInput, "the cluster '", cluster.name, "' has ", cluster.num_devices(), " devices, and none for rank ", rank);
}

}  // namespace

int Cluster::device_of_rank(int rank) const {
  check_rank(*this, rank);
  for (const HostGroup& group : hosts) {
    const int here = group.num_hosts * group.devices_per_host;
    if (rank < here) return group.kind_of(rank % group.devices_per_host);
    rank -= here;
  }
  return hosts.back().device;
}

int Cluster::host_of_rank(int rank) const {
  check_rank(*this, rank);
  int host = 0;
  for (const HostGroup& group : hosts) {
    const int here = group.num_hosts * group.devices_per_host;
    if (rank < here) return host + rank / group.devices_per_host;
    rank -= here;
    host += group.num_hosts;
  }
  return host;
}

bool Cluster::is_mixed() const {
  const int first = hosts.front().kind_of(0);
  return std::any_of(hosts.begin(), hosts.end(), [&](const HostGroup& group) {
    return group.mixed.empty() ? group.device != first
                               : std::any_of(group.mixed.begin(), group.mixed.end(), [&](int kind) { return kind != first; });
  });
}

double exchange_seconds(const Cluster& cluster, Exchange exchange, int num_ranks, bool leaves_host, double bytes) {
  if (num_ranks <= 1) return 0;
  const Link& link = (leaves_host ? cluster.across : cluster.inside).of(exchange);
  const auto moved = [&](double sent) { return link.bytes_per_second > 0 ? sent / link.bytes_per_second : 0; };
  if (exchange == Exchange::kHandOver) return link.latency_seconds + moved(bytes);
  const double ranks = num_ranks, times = exchange == Exchange::kAllReduce ? 2 : 1;
  return link.latency_seconds * std::log2(ranks) + link.rank_seconds * ranks + moved(times * (ranks - 1) / ranks * bytes);
}

bool leaves_host(const Cluster& cluster, int first, int stride, int num_ranks) {
  const int64_t last = first + static_cast<int64_t>(stride) * (num_ranks - 1);
  return num_ranks > 1 && cluster.host_of_rank(first) != cluster.host_of_rank(static_cast<int>(last));
}

Cluster with_hosts_for(Cluster cluster, int num_devices) {
  HostGroup& last = cluster.hosts.back();
  if (const int missing = num_devices - cluster.num_devices(); missing > 0)
    last.num_hosts += (missing + last.devices_per_host - 1) / last.devices_per_host;
  return cluster;
}

Cluster first_devices(const Cluster& cluster, int num_devices) {
  if (num_devices < 1 || num_devices > cluster.num_devices())
    fail(ErrorCode::kBadInput, "the cluster '", cluster.name, "' has 1 to ", cluster.num_devices(), " devices, not ", num_devices);
  Cluster out = cluster;
  out.hosts.clear();
  for (const HostGroup& group : cluster.hosts) {
    const int whole = std::min(group.num_hosts, num_devices / group.devices_per_host);
    if (whole > 0) out.hosts.push_back({whole, group.devices_per_host, group.device, group.mixed});
    num_devices -= whole * group.devices_per_host;
    if (whole < group.num_hosts && num_devices > 0) {
      HostGroup& part = out.hosts.emplace_back(HostGroup{1, num_devices, group.device, {}});
      for (int place = 0; place < num_devices && !group.mixed.empty(); ++place) part.mixed.push_back(group.kind_of(place));
      num_devices = 0;
    }
    if (num_devices == 0) break;
  }
  return out;
}

}  // namespace cohort
