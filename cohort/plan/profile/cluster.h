#pragma once
// What a model is to run on: devices, hosts and links, measured or from data sheets. Torch-free; a file is clusters/NAME.toml or the same
// as JSON (docs/formats/cluster.md).

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cohort/base/text/json_fwd.h"

namespace cohort {

/// One kind of device; a rank has one device of its own.
struct DeviceKind {
  struct Rate {
    std::string precision;  ///< fp32, bf16, fp16.
    double flops_per_second = 0;
  };

  std::string name;
  int64_t memory_bytes = 0;            ///< Total memory.
  int64_t reserved_bytes = 0;          ///< Used by a process before its first tensor.
  double allocator_overhead = 0;       ///< Rounding and fragmentation, as a share of the tensors' bytes.
  std::vector<Rate> rates;             ///< Rates of matrix products that fill the device.
  double half_rate_elements = 0;       ///< Elements of a product's result at which it reaches half of the rate.
  double half_rate_width = 0;          ///< Columns at which it reaches half of the rate; 0: any product has the full rate.
  double memory_bytes_per_second = 0;  ///< For everything but products, and for updates of weights.
  double launch_seconds = 0;           ///< Launch time of a layer's forward, its minimum.
  std::string source;                  ///< Where the numbers are from.

  /// Error(kBadInput) where the device has no rate for it.
  double flops_per_second(const std::string& precision) const;
  bool has(const std::string& precision) const;
};

/// Cost of an exchange between ranks.
struct Link {
  double latency_seconds = 0;   ///< For each doubling of the ranks of an exchange; once per transfer.
  double rank_seconds = 0;      ///< For each rank of an exchange.
  double bytes_per_second = 0;  ///< Sent by a rank while all ranks of its host send; 0: no limit.
};

enum class Exchange : uint8_t { kHandOver, kAllReduce, kAllGather, kReduceScatter };
inline constexpr int kNumExchanges = 4;
/// "hand_over", "all_reduce", "all_gather", "reduce_scatter": keys of files.
const std::array<std::string, kNumExchanges>& exchange_names();

struct Links {
  std::array<Link, kNumExchanges> by_exchange;
  const Link& of(Exchange exchange) const { return by_exchange[static_cast<size_t>(exchange)]; }
};

/// Hosts that are alike and follow each other in rank order.
struct HostGroup {
  int num_hosts = 1;
  int devices_per_host = 1;
  int device = 0;          ///< Index of its kind.
  std::vector<int> mixed;  ///< Where the devices of a host are not alike: the kind of each; empty: all are `device`.

  int kind_of(int place) const { return mixed.empty() ? device : mixed[static_cast<size_t>(place) % mixed.size()]; }
};

struct Cluster {
  std::string name, source;
  std::vector<DeviceKind> devices;
  std::vector<HostGroup> hosts;
  Links inside, across;        ///< Within a host, and between hosts.
  bool shared_memory = false;  ///< Ranks of a host can hold one copy of the weights and optimizer state.
  /// 90 % prediction interval of forecasts made with these numbers, as factors. 1: unknown.
  double forecast_low = 1, forecast_high = 1;

  int num_devices() const;
  /// The kind of device of a rank; ranks are numbered host by host.
  int device_of_rank(int rank) const;
  int host_of_rank(int rank) const;
  bool is_mixed() const;  ///< Several kinds of device.
};

/// Seconds of one exchange among `num_ranks` ranks of which each has, or gets, `bytes` in the end (a reduce-scatter starts with them):
///   hand-over        latency + bytes / rate
///   all-reduce       latency x log2 n + rank_seconds x n + 2 (n - 1) / n x bytes / rate
///   the other two    latency x log2 n + rank_seconds x n +   (n - 1) / n x bytes / rate
/// over the links inside of a host, or between hosts where `leaves_host`. 0 among one.
double exchange_seconds(const Cluster& cluster, Exchange exchange, int num_ranks, bool leaves_host, double bytes);
/// Whether ranks first, first + stride, ... (num_ranks of them) are on several hosts.
bool leaves_host(const Cluster& cluster, int first, int stride, int num_ranks);

/// Error(kBadInput) that says what is missing or wrong, with its place; unknown keys are refused. Numbers are finite and not negative,
/// 1 to 1,048,576 devices.
Cluster cluster_from_json(const Json& json, const std::string& where);
Json to_json(const Cluster& cluster);
/// A .toml or .json file. Errors begin with FILE or FILE:LINE.
Cluster read_cluster(const std::string& path);
/// The cluster cut to its first `num_devices` devices. Error(kBadInput) unless 1 to num_devices().
Cluster first_devices(const Cluster& cluster, int num_devices);
/// The cluster with as many more hosts of the last kind as `num_devices` devices need.
Cluster with_hosts_for(Cluster cluster, int num_devices);

}  // namespace cohort
