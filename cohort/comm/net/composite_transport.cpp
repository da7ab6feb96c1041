#include "cohort/comm/net/composite_transport.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/comm/transport/reduce.h"

namespace cohort {
namespace {

/// The transport of a group of one rank, in which NetworkTransport sends nothing.
class AloneTransport final : public NetworkTransport {
 public:
  AloneTransport() : NetworkTransport(0, 1, "a host of one rank") {}
  const char* name() const override { return "alone"; }

 protected:
  std::shared_ptr<Message> post_send(const void*, size_t, int peer, int, Lane) override { refuse(peer); }
  std::shared_ptr<Message> post_receive(void*, size_t, int peer, int, Lane) override { refuse(peer); }
  int max_tag() const override { return 0; }

 private:
  [[noreturn]] static void refuse(int peer) { fail(ErrorCode::kBadInput, "there is no rank ", peer, " on a host of one rank"); }
};

/// Outcome of a network step; "" on success.
struct Outcome {
  char text[512] = {};
};

/// Replaces rank numbers within a host by the group's in an error text.
std::string renumbered(const std::string& text, const std::vector<int>& ranks) {
  constexpr std::string_view kWord = "rank ";
  std::string result;
  size_t done = 0;
  for (size_t at = text.find(kWord); at != std::string::npos; at = text.find(kWord, done)) {
    const size_t begin = at + kWord.size(), end = std::min(text.find_first_not_of("0123456789", begin), text.size());
    const auto place = parse_integer(std::string_view(text).substr(begin, end - begin));
    const bool known = place && *place < static_cast<int64_t>(ranks.size());
    result.append(text, done, begin - done);
    result += known ? std::to_string(ranks[static_cast<size_t>(*place)]) : text.substr(begin, end - begin);
    done = end;
  }
  return result.append(text, done);
}

/// Runs `body` with errors that name the group's ranks.
template <typename Body>
auto with_ranks(const std::vector<int>& ranks, Body body) {
  try {
    return body();
  } catch (const Error& error) {
    throw Error(error.code(), renumbered(error.what(), ranks));
  } catch (const std::exception& error) {
    throw std::runtime_error(renumbered(error.what(), ranks));
  }
}

/// A message within a host.
class InsideMessage : public Message {
 public:
  InsideMessage(std::shared_ptr<Message> message, std::vector<int> ranks) : message_(std::move(message)), ranks_(std::move(ranks)) {}
  bool done() override {
    return with_ranks(ranks_, [this] { return message_->done(); });
  }
  void wait() override {
    with_ranks(ranks_, [this] { message_->wait(); });
  }
  int source() override { return ranks_[static_cast<size_t>(message_->source())]; }

 private:
  std::shared_ptr<Message> message_;
  std::vector<int> ranks_;
};

/// data *= factor.
void scale(void* data, size_t count, at::ScalarType type, double factor) {
  at::from_blob(data, {static_cast<int64_t>(count)}, at::TensorOptions(type)).mul_(factor);
}

}  // namespace

CompositeTransport::CompositeTransport(int rank, HostMap hosts, Parts parts, std::string group)
    : Transport(rank, hosts.num_ranks()),
      hosts_(std::move(hosts)),
      host_(hosts_.host_of(rank)),
      place_(hosts_.place_of(rank)),
      parts_(std::move(parts)),
      group_(std::move(group)) {
  if (!parts_.inside) parts_.inside = std::make_unique<AloneTransport>();
  if (!parts_.between && hosts_.num_hosts() == 1) parts_.between = std::make_unique<AloneTransport>();
  const auto fits = [](const Transport& part, int part_rank, int part_size) {
    return part.rank() == part_rank && part.size() == part_size;
  };
  if (!fits(*parts_.inside, place_, static_cast<int>(num_inside())) ||
      (is_leader() && !(parts_.between && fits(*parts_.between, host_, hosts_.num_hosts()))) ||
      (parts_.all && !fits(*parts_.all, rank, size())))
    fail(ErrorCode::kBadInput, "the parts of a composite transport do not fit rank ", rank, " of ", hosts_.name_of(host_));
  name_ = hosts_.num_hosts() > 1
              ? concat(num_inside() > 1 ? parts_.inside->name() : "shm", "+", parts_.all ? parts_.all->name() : "network")
              : parts_.inside->name();
  if (!is_leader()) return;
  std::vector<std::string> names;
  for (int host = 0; host < hosts_.num_hosts(); ++host) names.push_back(hosts_.name_of(host));
  parts_.between->set_peer_names(std::move(names));
}

void CompositeTransport::run_inside(Call call) {
  call.sequence = ++inside_sequence_;
  with_ranks(hosts_.ranks_of(host_), [&] {
    parts_.inside->start(call);
    parts_.inside->finish(call);
  });
}

Call CompositeTransport::inside_call(Op op, size_t bytes, const void* input, void* output, int root_place) const {
  Call call;
  call.op = op;
  call.count = bytes;
  call.input = input;
  call.output = output;
  call.root = root_place;
  return call;
}

/// The leader's `output` gets the reduction of this host's inputs, in the form that between_hosts() combines.
void CompositeTransport::reduce_inside(const Call& call, size_t count, void* output) {
  Call inside = inside_call(Op::kReduce, count, call.input, output);
  inside.type = call.type;
  inside.reduction = call.reduction;
  inside.name = call.name;
  run_inside(inside);
  const double share = static_cast<double>(num_inside()) / size();
  if (is_leader() && call.reduction == Reduction::kAverage && !hosts_.even()) scale(output, count, call.type, share);
}

/// Averages avoid sums that could overflow: the average of the hosts' averages or, where hosts differ in their number of ranks, the sum of
/// their shares of it.
Reduction CompositeTransport::between_hosts(Reduction reduction) const {
  return reduction == Reduction::kAverage && !hosts_.even() ? Reduction::kSum : reduction;
}

void CompositeTransport::swap_inside(const void* input, std::vector<size_t> send_bytes, void* output, std::vector<size_t> receive_bytes) {
  Call call = inside_call(Op::kAllToAll, 0, input, output);
  call.send_counts = std::move(send_bytes);
  call.receive_counts = std::move(receive_bytes);
  run_inside(call);
}

/// Copies `data` between two ranks of this host. Collective within the host.
void CompositeTransport::move_inside(int from_rank, int to_rank, void* data, size_t bytes) {
  if (from_rank == to_rank) return;
  std::vector<size_t> sends(num_inside()), receives(num_inside());
  if (rank() == from_rank) sends[static_cast<size_t>(hosts_.place_of(to_rank))] = bytes;
  if (rank() == to_rank) receives[static_cast<size_t>(hosts_.place_of(from_rank))] = bytes;
  swap_inside(rank() == from_rank ? data : nullptr, sends, rank() == to_rank ? data : nullptr, receives);
}

void CompositeTransport::on_leaders(const std::function<void()>& step) {
  Outcome outcome;
  if (is_leader()) {
    try {
      step();
    } catch (const std::exception& error) {
      std::strncpy(outcome.text, *error.what() ? error.what() : "unknown error", sizeof outcome.text - 1);
    }
  }
  run_inside(inside_call(Op::kBroadcast, sizeof outcome, &outcome, &outcome));
  if (outcome.text[0]) throw std::runtime_error(outcome.text);
}

void CompositeTransport::swap_blocks(std::byte* all, size_t bytes) {
  std::vector<Outgoing> outgoing;
  std::vector<Incoming> incoming;
  for (int host = 0; host < hosts_.num_hosts(); ++host) {
    if (host == host_) continue;
    for (const auto& [first, count] : hosts_.runs_of(host_))
      outgoing.push_back({host, at(all, first, bytes), static_cast<size_t>(count) * bytes});
    for (const auto& [first, count] : hosts_.runs_of(host))
      incoming.push_back({host, at(all, first, bytes), static_cast<size_t>(count) * bytes});
  }
  parts_.between->exchange(outgoing, incoming);
}

void CompositeTransport::finish(Call& call) {
  check_call(call, size());
  const CallFrame mine = make_frame(call, rank(), size());
  std::vector<CallFrame> frames(static_cast<size_t>(size()));
  all_gather(frames.data(), &mine, sizeof mine);
  check_frames(frames.data(), size(), group_.c_str());
  if (finish_from_frames(frames.data(), call, rank(), size())) return;
  switch (call.op) {
    case Op::kAllReduce:
      return all_reduce(call);
    case Op::kReduce:
      return reduce(call);
    case Op::kReduceScatter:
      return reduce_scatter(call);
    case Op::kAllGather:
      return all_gather(call.output, call.input, rank_bytes(call));
    case Op::kBroadcast:
      return broadcast(call);
    case Op::kGather:
      return gather(call);
    case Op::kScatter:
      return scatter(call);
    case Op::kAllToAll: {
      const std::vector<uint64_t> record = count_record(call, size());
      std::vector<uint64_t> records(record.size() * static_cast<size_t>(size()));
      all_gather(records.data(), record.data(), record.size() * sizeof(uint64_t));
      return all_to_all(call, make_count_matrix(records, size(), call, group_.c_str()));
    }
    case Op::kBarrier:
      return;
  }
}

void CompositeTransport::all_gather(void* output, const void* input, size_t bytes) {
  std::byte* all = static_cast<std::byte*>(output);
  const auto block = scratch(is_leader() ? num_inside() * bytes : 0);
  run_inside(inside_call(Op::kGather, bytes, input, block.get()));
  on_leaders([&] {
    for (const int other : hosts_.ranks_of(host_)) copy_bytes(at(all, other, bytes), at(block.get(), hosts_.place_of(other), bytes), bytes);
    swap_blocks(all, bytes);
  });
  run_inside(inside_call(Op::kBroadcast, bytes * static_cast<size_t>(size()), all, all));
}

void CompositeTransport::all_reduce(const Call& call) {
  check_reduction(call.reduction, call.type);
  reduce_inside(call, call.count, call.output);
  on_leaders([&] {
    Call between = call;
    between.reduction = between_hosts(call.reduction);
    between.input = call.output;
    parts_.between->run(between);
  });
  run_inside(inside_call(Op::kBroadcast, rank_bytes(call), call.output, call.output));
}

void CompositeTransport::reduce(const Call& call) {
  check_reduction(call.reduction, call.type);
  const size_t bytes = rank_bytes(call);
  const int root_host = hosts_.host_of(call.root);
  const auto own = scratch(rank() == call.root || !is_leader() ? 0 : bytes);  // Only the root's output may be written.
  void* data = rank() == call.root ? call.output : own.get();
  if (rank() == call.root && !is_leader()) data = nullptr;
  reduce_inside(call, call.count, data);
  on_leaders([&] {
    Call between = call;
    between.reduction = between_hosts(call.reduction);
    between.input = between.output = data;
    between.root = root_host;
    parts_.between->run(between);
  });
  if (host_ == root_host) move_inside(hosts_.leader_of(host_), call.root, rank() == call.root ? call.output : data, bytes);
}

void CompositeTransport::reduce_scatter(const Call& call) {
  check_reduction(call.reduction, call.type);
  const size_t bytes = rank_bytes(call), block_bytes = num_inside() * bytes;
  const auto sum = scratch(is_leader() ? bytes * static_cast<size_t>(size()) : 0);
  const auto blocks = scratch(is_leader() ? block_bytes * static_cast<size_t>(hosts_.num_hosts()) : 0);
  reduce_inside(call, call.count * static_cast<size_t>(size()), sum.get());
  on_leaders([&] {
    std::vector<Outgoing> outgoing;
    std::vector<Incoming> incoming;
    std::vector<const std::byte*> addends;
    for (int host = 0; host < hosts_.num_hosts(); ++host) {
      std::byte* block = blocks.get() + block_bytes * static_cast<size_t>(host);
      addends.push_back(block);
      for (const auto& [first, count] : hosts_.runs_of(host_)) {
        std::byte* place = at(block, hosts_.place_of(first), bytes);
        const size_t length = static_cast<size_t>(count) * bytes;
        if (host == host_) copy_bytes(place, at(sum.get(), first, bytes), length);
        if (host != host_) incoming.push_back({host, place, length});
      }
      if (host == host_) continue;
      for (const auto& [first, count] : hosts_.runs_of(host))
        outgoing.push_back({host, at(sum.get(), first, bytes), static_cast<size_t>(count) * bytes});
    }
    parts_.between->exchange(outgoing, incoming);
    std::byte* result = blocks.get();
    reduce_arrays(&result, 1, addends.data(), addends.size(), call.count * num_inside(), call.type, between_hosts(call.reduction));
  });
  run_inside(inside_call(Op::kScatter, bytes, blocks.get(), call.output));
}

void CompositeTransport::broadcast(const Call& call) {
  const size_t bytes = rank_bytes(call);
  const int root_host = hosts_.host_of(call.root);
  if (host_ == root_host) run_inside(inside_call(Op::kBroadcast, bytes, call.input, call.output, hosts_.place_of(call.root)));
  on_leaders([&] {
    Call between = call;
    between.root = root_host;
    if (rank() != call.root) between.input = call.output;
    parts_.between->run(between);
  });
  if (host_ != root_host) run_inside(inside_call(Op::kBroadcast, bytes, call.output, call.output));
}

void CompositeTransport::gather(const Call& call) {
  const size_t bytes = rank_bytes(call), all_bytes = bytes * static_cast<size_t>(size());
  const int root_host = hosts_.host_of(call.root);
  const auto block = scratch(is_leader() ? num_inside() * bytes : 0);
  const bool is_root_leader = is_leader() && host_ == root_host;
  const auto own = scratch(is_root_leader && rank() != call.root ? all_bytes : 0);
  void* all = rank() == call.root ? call.output : own.get();
  run_inside(inside_call(Op::kGather, bytes, call.input, block.get()));
  on_leaders([&] {
    if (!is_root_leader) return parts_.between->exchange({{root_host, block.get(), num_inside() * bytes}}, {});
    const auto blocks = scratch(all_bytes);
    std::vector<std::byte*> block_of;
    std::vector<Incoming> incoming;
    std::byte* next = blocks.get();
    for (int host = 0; host < hosts_.num_hosts(); ++host) {
      const size_t length = hosts_.ranks_of(host).size() * bytes;
      block_of.push_back(host == host_ ? block.get() : next);
      if (host != host_) incoming.push_back({host, next, length});
      next += length;
    }
    parts_.between->exchange({}, incoming);
    for (int other = 0; other < size(); ++other)
      copy_bytes(at(all, other, bytes), at(block_of[static_cast<size_t>(hosts_.host_of(other))], hosts_.place_of(other), bytes), bytes);
  });
  if (host_ == root_host) move_inside(hosts_.leader_of(host_), call.root, all, all_bytes);
}

void CompositeTransport::scatter(const Call& call) {
  const size_t bytes = rank_bytes(call), all_bytes = bytes * static_cast<size_t>(size());
  const int root_host = hosts_.host_of(call.root);
  const bool is_root_leader = is_leader() && host_ == root_host;
  const auto own = scratch(is_root_leader && rank() != call.root ? all_bytes : 0);
  void* all = rank() == call.root ? const_cast<void*>(call.input) : own.get();  // Only read.
  if (host_ == root_host) move_inside(call.root, hosts_.leader_of(host_), all, all_bytes);
  const auto block = scratch(is_leader() ? num_inside() * bytes : 0);
  on_leaders([&] {
    std::vector<Outgoing> outgoing;
    std::vector<Incoming> incoming;
    for (int host = 0; is_root_leader && host < hosts_.num_hosts(); ++host)
      for (const auto& [first, count] : hosts_.runs_of(host))
        if (host != host_) outgoing.push_back({host, at(all, first, bytes), static_cast<size_t>(count) * bytes});
    for (const auto& [first, count] : hosts_.runs_of(host_)) {
      std::byte* place = at(block.get(), hosts_.place_of(first), bytes);
      const size_t length = static_cast<size_t>(count) * bytes;
      if (is_root_leader) copy_bytes(place, at(all, first, bytes), length);
      if (!is_root_leader) incoming.push_back({root_host, place, length});
    }
    parts_.between->exchange(outgoing, incoming);
  });
  run_inside(inside_call(Op::kScatter, bytes, block.get(), call.output));
}

bool CompositeTransport::is_on_this_host(int peer) const {
  if (peer < 0 || peer >= size() || peer == rank())
    fail(ErrorCode::kBadInput, "point-to-point message between rank ", rank(), " and ",
         peer == -1 ? std::string("any rank") : concat("rank ", peer), " in ", group_, " of ", size(), " ranks over ", name_,
         ": name another rank of the group", peer == -1 ? "; it may send over shared memory or the network" : "");
  const bool near = hosts_.host_of(peer) == host_;
  if (!near && !parts_.all)
    fail(ErrorCode::kBadInput, "this group has no transport for messages between ranks ", rank(), " and ", peer, ": they are on two hosts");
  return near;
}

std::shared_ptr<Message> CompositeTransport::send(const void* data, size_t bytes, int peer, int tag) {
  if (!is_on_this_host(peer)) return parts_.all->send(data, bytes, peer, tag);
  const std::vector<int>& here = hosts_.ranks_of(host_);
  return with_ranks(here,
                    [&] { return std::make_shared<InsideMessage>(parts_.inside->send(data, bytes, hosts_.place_of(peer), tag), here); });
}

std::shared_ptr<Message> CompositeTransport::receive(void* data, size_t bytes, int peer, int tag) {
  if (!is_on_this_host(peer)) return parts_.all->receive(data, bytes, peer, tag);
  const std::vector<int>& here = hosts_.ranks_of(host_);
  return with_ranks(here,
                    [&] { return std::make_shared<InsideMessage>(parts_.inside->receive(data, bytes, hosts_.place_of(peer), tag), here); });
}

}  // namespace cohort
