// Reductions over a network, in rank order: x0 o x1 o x2 ..., whatever the size, so all ranks and all runs agree bitwise.
//
// Steps for p ranks and n bytes:
//   all-reduce, small (up to kSmallBytes): 1. every rank gathers all p arrays; 2. reduces them in rank order.
//   all-reduce, large: 1. rank r receives slice r of every rank; 2. reduces the p slices in rank order; 3. hands the result to all.
//   reduce: the same, but that step 1 (small) or 3 (large) goes to the root alone.
//   reduce-scatter: steps 1 and 2 of the large all-reduce; the slices are the ranks' blocks.
//
// Cost for a rank: small 1 round, (p-1) n bytes in and out; large 2 rounds, 2 (p-1)/p n in and out, as a ring all-reduce moves in 2 (p-1)
// rounds; scratch n and a slice. Reduce-scatter: half.
//
// Why: a ring adds each element in an order that depends on its place in the buffer, so results change with bucket boundaries and ranks.
//
// Source: reduce-scatter + all-gather of Rabenseifner 2004, "Optimization of Collective Reduction Operations"; here direct, and the order
// is fixed.
#include "cohort/comm/net/network_transport.h"

#include <algorithm>

#include "cohort/base/fail.h"
#include "cohort/comm/transport/reduce.h"

namespace cohort {
namespace {

/// The slice of elements that each rank reduces.
struct Slices {
  size_t count, slice;
  Slices(size_t count, int num_ranks)
      : count(count), slice((count + static_cast<size_t>(num_ranks) - 1) / static_cast<size_t>(num_ranks)) {}
  size_t begin(int rank) const { return std::min(count, slice * static_cast<size_t>(rank)); }
  size_t length(int rank) const { return begin(rank + 1) - begin(rank); }
};

/// output = the reduction of all ranks' slices of this rank; may alias `input`.
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

/// Reduces the whole inputs of all ranks, in rank order, into the output.
void reduce_gathered(const Call& call, const std::byte* arrays, int size) {
  std::vector<const std::byte*> addends;
  for (int peer = 0; peer < size; ++peer) addends.push_back(arrays + rank_bytes(call) * static_cast<size_t>(peer));
  std::byte* output = static_cast<std::byte*>(call.output);
  reduce_arrays(&output, 1, addends.data(), addends.size(), call.count, call.type, call.reduction);
}

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
    const auto mine = scratch(slices.length(rank) * element);  // Only the root's output may be written.
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

constexpr int kTag = 0;  // Messages between two ranks arrive in order.

size_t index(int rank) { return static_cast<size_t>(rank); }

}  // namespace

std::string NetworkTransport::peer_name(int peer) const {
  return index(peer) < peer_names_.size() ? peer_names_[index(peer)] : concat("rank ", peer);
}

void NetworkTransport::check_peer(int peer, int tag, bool any_allowed) const {
  if ((peer < 0 && !(any_allowed && peer == -1)) || peer >= size() || peer == rank())
    fail(ErrorCode::kBadInput, "point-to-point message between rank ", rank(), " and rank ", peer, " in ", group_, " of ", size(),
         " ranks: the peer must be another rank of the group");
  if (tag < 0 || tag > max_tag()) fail(ErrorCode::kBadInput, "tag ", tag, " of a message over ", name(), ": use 0 to ", max_tag());
}

std::shared_ptr<Message> NetworkTransport::send(const void* data, size_t bytes, int peer, int tag) {
  check_peer(peer, tag, false);
  return post_send(data, bytes, peer, tag, Lane::kUser);
}

std::shared_ptr<Message> NetworkTransport::receive(void* data, size_t bytes, int peer, int tag) {
  check_peer(peer, tag, true);
  return post_receive(data, bytes, peer, tag, Lane::kUser);
}

void NetworkTransport::exchange(const std::vector<Outgoing>& outgoing, const std::vector<Incoming>& incoming) {
  std::vector<std::shared_ptr<Message>> messages;
  for (const Incoming& in : incoming)
    if (in.bytes > 0) messages.push_back(post_receive(in.data, in.bytes, in.peer, kTag, Lane::kCollective));
  // Next rank first, so that no two ranks send to the same one at once.
  std::vector<Outgoing> ordered(outgoing);
  std::stable_sort(ordered.begin(), ordered.end(), [this](const Outgoing& a, const Outgoing& b) {
    return (a.peer - rank() + size()) % size() < (b.peer - rank() + size()) % size();
  });
  for (const Outgoing& out : ordered)
    if (out.bytes > 0) messages.push_back(post_send(out.data, out.bytes, out.peer, kTag, Lane::kCollective));
  for (const auto& message : messages) message->wait();
}

void NetworkTransport::all_gather(void* output, const void* input, size_t bytes) {
  std::byte* all = static_cast<std::byte*>(output);
  std::vector<Outgoing> outgoing;
  std::vector<Incoming> incoming;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    outgoing.push_back({peer, input, bytes});
    incoming.push_back({peer, all + index(peer) * bytes, bytes});
  }
  exchange(outgoing, incoming);
  copy_bytes(all + index(rank()) * bytes, input, bytes);
}

void NetworkTransport::finish(Call& call) {
  check_call(call, size());
  const CallFrame mine = make_frame(call, rank(), size());
  std::vector<CallFrame> frames(index(size()));
  all_gather(frames.data(), &mine, sizeof mine);
  check_frames(frames.data(), size(), group_.c_str());
  if (finish_from_frames(frames.data(), call, rank(), size())) return;
  if (is_uneven(call)) {
    const std::vector<uint64_t> record = count_record(call, size());
    std::vector<uint64_t> records(record.size() * index(size()));
    all_gather(records.data(), record.data(), record.size() * sizeof(uint64_t));
    make_count_matrix(records, size(), call, group_.c_str());
  }
  run(call);
}

void NetworkTransport::run(const Call& call) {
  switch (call.op) {
    case Op::kAllReduce:
      return network_all_reduce(*this, call);
    case Op::kReduce:
      return network_reduce(*this, call);
    case Op::kReduceScatter:
      return network_reduce_scatter(*this, call);
    case Op::kAllGather:
      return all_gather(call);
    case Op::kBroadcast:
      return broadcast(call);
    case Op::kAllToAll:
      return all_to_all(call);
    case Op::kGather:
      return gather(call);
    case Op::kScatter:
      return scatter(call);
    case Op::kBarrier: {
      std::byte nothing{};
      std::vector<std::byte> all(index(size()));
      return all_gather(all.data(), &nothing, 1);
    }
  }
}

void NetworkTransport::all_gather(const Call& call) {
  const size_t bytes = rank_bytes(call);
  if (call.input != call.output || rank() == 0) return all_gather(call.output, call.input, bytes);
  // Rank 0's block would overwrite it before it is sent.
  std::byte* const mine = static_cast<std::byte*>(call.output) + index(rank()) * bytes;
  copy_bytes(mine, call.input, bytes);
  all_gather(call.output, mine, bytes);
}

void NetworkTransport::broadcast(const Call& call) {
  const size_t bytes = rank_bytes(call);
  if (rank() == call.root && call.output) copy_bytes(call.output, call.input, bytes);
  // The root's data is only read.
  std::byte* data = static_cast<std::byte*>(rank() == call.root ? const_cast<void*>(call.input) : call.output);
  if (size() <= 2 || bytes <= kSmallBytes) {
    broadcast_by_tree(data, bytes, call.root);
  } else {
    broadcast_by_slices(data, bytes, call.root);
  }
}

/// Binomial tree over ranks relative to the root: holders send to 2^k ranks further, k = 0, 1, ...
void NetworkTransport::broadcast_by_tree(std::byte* data, size_t bytes, int root) {
  const int place = (rank() - root + size()) % size();
  const auto at = [&](int other) { return (other + root) % size(); };
  for (int step = 1; step < size(); step *= 2) {
    if (place < step && place + step < size()) exchange({{at(place + step), data, bytes}}, {});
    if (place >= step && place < 2 * step) exchange({}, {{at(place - step), data, bytes}});
  }
}

/// The root sends a slice to each other rank; those exchange theirs.
void NetworkTransport::broadcast_by_slices(std::byte* data, size_t bytes, int root) {
  const size_t num_slices = index(size() - 1), slice = (bytes + num_slices - 1) / num_slices;
  const auto place = [&](int peer) { return index(peer < root ? peer : peer - 1); };
  const auto begin = [&](int peer) { return std::min(bytes, place(peer) * slice); };
  const auto length = [&](int peer) { return std::min(bytes, (place(peer) + 1) * slice) - begin(peer); };
  std::vector<Outgoing> outgoing;
  std::vector<Incoming> incoming;
  if (rank() == root) {
    for (int peer = 0; peer < size(); ++peer)
      if (peer != root) outgoing.push_back({peer, data + begin(peer), length(peer)});
    return exchange(outgoing, incoming);
  }
  exchange({}, {{root, data + begin(rank()), length(rank())}});
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == root || peer == rank()) continue;
    outgoing.push_back({peer, data + begin(rank()), length(rank())});
    incoming.push_back({peer, data + begin(peer), length(peer)});
  }
  exchange(outgoing, incoming);
}

void NetworkTransport::all_to_all(const Call& call) {
  const size_t element = c10::elementSize(call.type);
  const bool even = !is_uneven(call);
  const auto bytes_of = [&](const std::vector<size_t>& counts, int peer) { return (even ? call.count : counts[index(peer)]) * element; };
  const std::byte *input = static_cast<const std::byte*>(call.input), *own_input = nullptr;
  std::byte *output = static_cast<std::byte*>(call.output), *own_output = nullptr;
  // In place, blocks would be overwritten before they are sent.
  std::vector<std::byte> copy;
  if (call.input == call.output) {
    copy.assign(input, input + input_bytes(call, rank(), size()));
    input = copy.data();
  }
  std::vector<Outgoing> outgoing;
  std::vector<Incoming> incoming;
  for (int peer = 0; peer < size(); ++peer) {
    const size_t sent = bytes_of(call.send_counts, peer), received = bytes_of(call.receive_counts, peer);
    if (peer == rank()) {
      own_input = input;
      own_output = output;
    } else {
      outgoing.push_back({peer, input, sent});
      incoming.push_back({peer, output, received});
    }
    input += sent;
    output += received;
  }
  copy_bytes(own_output, own_input, bytes_of(call.send_counts, rank()));
  exchange(outgoing, incoming);
}

void NetworkTransport::gather(const Call& call) {
  const size_t bytes = rank_bytes(call);
  if (rank() != call.root) return exchange({{call.root, call.input, bytes}}, {});
  std::byte* output = static_cast<std::byte*>(call.output);
  std::vector<Incoming> incoming;
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank()) incoming.push_back({peer, output + index(peer) * bytes, bytes});
  copy_bytes(output + index(rank()) * bytes, call.input, bytes);
  exchange({}, incoming);
}

void NetworkTransport::scatter(const Call& call) {
  const size_t bytes = rank_bytes(call);
  if (rank() != call.root) return exchange({}, {{call.root, call.output, bytes}});
  const std::byte* input = static_cast<const std::byte*>(call.input);
  std::vector<Outgoing> outgoing;
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank()) outgoing.push_back({peer, input + index(peer) * bytes, bytes});
  exchange(outgoing, {});
  copy_bytes(call.output, input + index(rank()) * bytes, bytes);
}

}  // namespace cohort
