#include "cohort/comm/net/network_reduce.h"

#include <algorithm>
#include <memory>

#include "cohort/comm/net/network_transport.h"
#include "cohort/comm/transport/reduce.h"

namespace cohort {
namespace {

/// Bytes that are not set to zero first. new[] of bytes is aligned for every element type.
std::unique_ptr<std::byte[]> scratch(size_t bytes) { return std::make_unique_for_overwrite<std::byte[]>(bytes); }

/// [begin, end) in elements of the slice that each rank reduces.
struct Slices {
  size_t count, slice;
  Slices(size_t count, int num_ranks)
      : count(count), slice((count + static_cast<size_t>(num_ranks) - 1) / static_cast<size_t>(num_ranks)) {}
  size_t begin(int rank) const { return std::min(count, slice * static_cast<size_t>(rank)); }
  size_t length(int rank) const { return begin(rank + 1) - begin(rank); }
};

/// output = the reduction over all ranks of their slices number `network.rank()`; may lie in `input`.
void reduce_own_slice(NetworkTransport& network, const Call& call, const Slices& slices, std::byte* output) {
  const int rank = network.rank(), size = network.size();
  const size_t element = c10::elementSize(call.type), count = slices.length(rank), bytes = count * element;
  const std::byte* input = static_cast<const std::byte*>(call.input);
  const auto received = scratch(bytes * static_cast<size_t>(size));
  std::vector<Outgoing> outgoing;
  std::vector<Incoming> incoming;
  std::vector<const std::byte*> addends;
  for (int peer = 0; peer < size; ++peer) {
    std::byte* place = received.get() + bytes * static_cast<size_t>(peer);
    addends.push_back(place);
    if (peer == rank) {
      copy_bytes(place, input + slices.begin(rank) * element, bytes);
    } else {
      outgoing.push_back({peer, input + slices.begin(peer) * element, slices.length(peer) * element});
      incoming.push_back({peer, place, bytes});
    }
  }
  network.exchange(outgoing, incoming);
  reduce_arrays(&output, 1, addends.data(), addends.size(), count, call.type, call.reduction);
}

/// Reduces `arrays`, the whole inputs of all ranks in rank order, into the output.
void reduce_gathered(const Call& call, const std::byte* arrays, int size) {
  std::vector<const std::byte*> addends;
  for (int peer = 0; peer < size; ++peer) addends.push_back(arrays + piece_bytes(call) * static_cast<size_t>(peer));
  std::byte* output = static_cast<std::byte*>(call.output);
  reduce_arrays(&output, 1, addends.data(), addends.size(), call.count, call.type, call.reduction);
}

}  // namespace

void network_all_reduce(NetworkTransport& network, const Call& call) {
  check_reduction(call.reduction, call.type);
  const int rank = network.rank(), size = network.size();
  const size_t element = c10::elementSize(call.type), bytes = call.count * element;
  if (bytes <= NetworkTransport::kSmallBytes || size == 1) {
    const auto all = scratch(bytes * static_cast<size_t>(size));
    network.all_gather(all.get(), call.input, bytes);
    return reduce_gathered(call, all.get(), size);
  }
  const Slices slices(call.count, size);
  std::byte* output = static_cast<std::byte*>(call.output);
  std::byte* mine = output + slices.begin(rank) * element;
  reduce_own_slice(network, call, slices, mine);
  std::vector<Outgoing> outgoing;
  std::vector<Incoming> incoming;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    outgoing.push_back({peer, mine, slices.length(rank) * element});
    incoming.push_back({peer, output + slices.begin(peer) * element, slices.length(peer) * element});
  }
  network.exchange(outgoing, incoming);
}

void network_reduce(NetworkTransport& network, const Call& call) {
  check_reduction(call.reduction, call.type);
  const int rank = network.rank(), size = network.size();
  const size_t element = c10::elementSize(call.type), bytes = call.count * element;
  const bool is_root = rank == call.root;
  if (bytes <= NetworkTransport::kSmallBytes || size == 1) {
    const auto all = scratch(is_root ? bytes * static_cast<size_t>(size) : 0);
    Call gather = call;
    gather.op = Op::kGather;
    gather.output = all.get();
    network.run(gather);
    if (is_root) reduce_gathered(call, all.get(), size);
    return;
  }
  const Slices slices(call.count, size);
  if (!is_root) {
    const auto mine = scratch(slices.length(rank) * element);  // The output of others than the root is not ours to write.
    reduce_own_slice(network, call, slices, mine.get());
    return network.exchange({{call.root, mine.get(), slices.length(rank) * element}}, {});
  }
  std::byte* output = static_cast<std::byte*>(call.output);
  reduce_own_slice(network, call, slices, output + slices.begin(rank) * element);
  std::vector<Incoming> incoming;
  for (int peer = 0; peer < size; ++peer)
    if (peer != rank) incoming.push_back({peer, output + slices.begin(peer) * element, slices.length(peer) * element});
  network.exchange({}, incoming);
}

void network_reduce_scatter(NetworkTransport& network, const Call& call) {
  check_reduction(call.reduction, call.type);
  const Slices slices(call.count * static_cast<size_t>(network.size()), network.size());
  reduce_own_slice(network, call, slices, static_cast<std::byte*>(call.output));
}

}  // namespace cohort
