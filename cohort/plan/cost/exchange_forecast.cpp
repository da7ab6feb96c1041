// The exchange of gradients and weights over the data axis, and the update. n bytes of gradients, p ranks, s optimizer arrays, M bytes a
// second of memory.
//
//   one copy a host   no messages: a rank reads the gradients of all p ranks for its share n / p while it updates that share, so
//                     update = (p + 2 + 2 s) n / p / M, and nothing hides it (docs/algorithms/shared_data_parallel.md)
//   ZeRO 0            an all-reduce of n in buckets; with one stage all but the last bucket may hide behind the last backward
//   ZeRO 1            a reduce-scatter and an all-gather of n; the latter follows the update and is not hidden
//   ZeRO 2            a reduce-scatter for each backward, behind it but for the last bucket; one all-gather
//   ZeRO 3            weights gathered for each forward and backward, gradients scattered for each backward, both overlapped with compute
//   update            (3 + 2 s) n / M: gradient read, weight and state read and written; n / p of it under ZeRO 1 to 3
//   compression       fewer bytes, maybe in more exchanges, plus the seconds to compress and decompress: measured (ModelProfile::codings),
//                     or passes over n at M: 3 for half precision, 4 int8, 8 PowerSGD, 10 topk (docs/algorithms/compression.md)
//
// Nothing is hidden in a pipeline, whose stages hold their gradients until the last backward (Strategy::hold_gradients), nor where the
// ranks of one host compute on all of its cores, because the exchange then takes cores from compute.
#include "cohort/plan/cost/step_forecast.h"

#include <algorithm>
#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

/// Bytes sent for each byte of fp32 gradients.
double sent_share(const std::string& compress, double bytes) {
  if (compress == "fp16" || compress == "bf16") return 0.5;
  if (compress == "int8") return 0.25;
  const std::vector<std::string> parts = split(compress, ':');
  const double number = parts.size() == 2 ? parse_number(parts[1]).value_or(1) : 1;
  if (parts[0] == "topk") return std::min(1.0, 2 * number);  // A value and its index.
  // powersgd:R: two factors of rank R; a matrix of n elements is taken as square.
  if (parts[0] == "powersgd") return std::min(1.0, 2 * number / std::sqrt(std::max(1.0, bytes / 4)));
  return 1;
}

double coding_passes(const std::string& compress) {
  if (compress == "none") return 0;
  return compress.starts_with("topk") ? 10 : compress.starts_with("powersgd") ? 8 : compress == "int8" ? 4 : 3;
}

}  // namespace

ExchangeForecast forecast_exchange(const Cluster& cluster, const DataExchange& asked) {
  ExchangeForecast out;
  const double bytes = static_cast<double>(asked.gradient_bytes), memory = asked.memory_bytes_per_second;
  const double arrays = 3 + 2.0 * asked.optimizer_arrays;
  const auto moved = [&](double moved_bytes) { return memory > 0 ? moved_bytes / memory : 0; };
  if (asked.num_ranks == 1) {
    out.update_seconds = moved(arrays * bytes);
    return out;
  }
  const double ranks = asked.num_ranks;
  if (asked.one_copy) {
    out.update_seconds = moved((ranks + arrays - 1) * bytes / ranks);
    return out;
  }
  out.update_seconds = moved(arrays * bytes / (asked.zero > 0 ? ranks : 1));
  const double num_buckets = std::max(1.0, std::ceil(bytes / static_cast<double>(std::max<int64_t>(1, asked.bucket_bytes))));
  const auto exchange = [&](Exchange kind, double all) {
    return num_buckets * exchange_seconds(cluster, kind, asked.num_ranks, asked.leaves_host, all / num_buckets);
  };
  // All but the last bucket may overlap with `behind` seconds of compute.
  const auto shown = [&](double total, double behind) { return asked.hides ? std::max(total / num_buckets, total - behind) : total; };
  if (asked.zero == 0) {
    const double share = asked.coding ? asked.coding->sent_share : sent_share(asked.compress, bytes);
    const double coding = asked.coding ? asked.coding->seconds : moved(coding_passes(asked.compress) * bytes);
    const double times = asked.coding ? asked.coding->num_exchanges : asked.compress.starts_with("powersgd") ? 2 : 1;
    const double total = times * exchange(Exchange::kAllReduce, share * bytes / times);
    out.exchange_seconds = total + coding;
    // Compression uses the processor that computes.
    out.exposed_seconds = coding + (asked.overlaps ? shown(total, asked.backward_seconds) : total);
    return out;
  }
  const double scatter = exchange(Exchange::kReduceScatter, bytes), gather = exchange(Exchange::kAllGather, bytes);
  if (asked.zero == 1) {
    out.exchange_seconds = scatter + gather;
    out.exposed_seconds = gather + (asked.overlaps ? shown(scatter, asked.backward_seconds) : scatter);
    return out;
  }
  const double scattered = asked.overlaps ? asked.num_backwards * shown(scatter, asked.backward_seconds) : scatter;
  const double num_scatters = asked.overlaps ? asked.num_backwards : 1;
  if (asked.zero == 2) {
    out.exchange_seconds = num_scatters * scatter + gather;
    out.exposed_seconds = scattered + gather;
    return out;
  }
  const double weights = exchange(Exchange::kAllGather, static_cast<double>(asked.weight_bytes));
  out.exchange_seconds = num_scatters * scatter + 2 * asked.num_forwards * weights;
  const double beside = asked.overlaps ? scatter : 0;
  out.exposed_seconds = asked.num_forwards * (shown(weights, asked.forward_seconds) + shown(weights + beside, asked.backward_seconds)) +
                        (asked.overlaps ? 0 : scatter);
  return out;
}

MeshPlacement::MeshPlacement(const Layout& layout, const Cluster& cluster)
    : cluster_(cluster), tp_(layout.tp), is_even_(layout.is_even()), degrees_(layout.data_degrees()) {
  if (layout.num_ranks() > cluster.num_devices())
    fail(ErrorCode::kBadInput, name_settings("--layout "), to_text(layout), " needs ", layout.num_ranks(), " devices, and the cluster '",
         cluster.name, "' has ", cluster.num_devices());
  int next = 0;
  for (const int degree : degrees_) {
    first_rank_.push_back(next);
    next += degree * tp_;
  }
  std::vector<std::string> axes = split(layout.order, '-');
  std::reverse(axes.begin(), axes.end());
  int stride = 1;
  for (const std::string& axis : axes) {
    (axis == "dp" ? data_stride_ : axis == "pp" ? pipe_stride_ : tensor_stride_) = stride;
    stride *= axis == "dp" ? degrees_.front() : axis == "pp" ? num_workers() : tp_;
  }
}

int MeshPlacement::rank(int data, int worker, int tensor) const {
  if (!is_even_) return first_rank_[static_cast<size_t>(worker)] + data * tp_ + tensor;
  return data * data_stride_ + worker * pipe_stride_ + tensor * tensor_stride_;
}

std::vector<int> MeshPlacement::kinds(int worker) const {
  if (!cluster_.is_mixed()) return {cluster_.hosts.front().device};
  std::vector<int> kinds;
  for (int data = 0; data < degree(worker); ++data)
    for (int tensor = 0; tensor < tp_; ++tensor) {
      const int kind = cluster_.device_of_rank(rank(data, worker, tensor));
      if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(kind);
    }
  return kinds;
}

bool MeshPlacement::tensor_leaves_host(int worker) const {
  for (int data = 0; data < degree(worker) && tp_ > 1; ++data)
    if (cluster_.host_of_rank(rank(data, worker, 0)) != cluster_.host_of_rank(rank(data, worker, tp_ - 1))) return true;
  return false;
}

bool MeshPlacement::data_leaves_host(int worker) const {
  for (int tensor = 0; tensor < tp_ && degree(worker) > 1; ++tensor)
    if (cluster_.host_of_rank(rank(0, worker, tensor)) != cluster_.host_of_rank(rank(degree(worker) - 1, worker, tensor))) return true;
  return false;
}

bool MeshPlacement::handover_leaves_host(int from, int to) const {
  const int pairs = std::max(degree(from), degree(to));
  for (int data = 0; data < pairs; ++data)
    for (int tensor = 0; tensor < tp_; ++tensor)
      if (cluster_.host_of_rank(rank(data % degree(from), from, tensor)) != cluster_.host_of_rank(rank(data % degree(to), to, tensor)))
        return true;
  return false;
}

}  // namespace cohort
