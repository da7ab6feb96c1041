// The all-to-all of CompositeTransport.
//
// Steps: 1. inside each host every rank sends the others their messages, and the leader all that leaves the host, ordered by host and rank;
// 2. leaders exchange one message for each sending rank and receiving host; 3. inside each host the leader distributes what has arrived.
//
// Cost: every byte that changes hosts crosses the network once, and the memory of both hosts twice.

#include "cohort/comm/net/composite_transport.h"

namespace cohort {
namespace {

/// Message sizes in bytes between ranks and hosts.
class Sizes {
 public:
  Sizes(const HostMap& hosts, const CountMatrix& counts, size_t element_bytes)
      : hosts_(hosts), counts_(counts), element_bytes_(element_bytes) {}
  size_t piece(int from, int to) const { return counts_.at(from, to) * element_bytes_; }
  size_t to_host(int from, int host) const {
    size_t bytes = 0;
    for (const int to : hosts_.ranks_of(host)) bytes += piece(from, to);
    return bytes;
  }
  size_t leaving(int from) const {
    size_t bytes = 0;
    for (int host = 0; host < hosts_.num_hosts(); ++host)
      if (host != hosts_.host_of(from)) bytes += to_host(from, host);
    return bytes;
  }
  size_t coming(int to) const {
    size_t bytes = 0;
    for (int from = 0; from < hosts_.num_ranks(); ++from)
      if (hosts_.host_of(from) != hosts_.host_of(to)) bytes += piece(from, to);
    return bytes;
  }

 private:
  const HostMap& hosts_;
  const CountMatrix& counts_;
  size_t element_bytes_;
};

/// Appends messages to a buffer.
struct Packer {
  std::byte* next;
  void add(const std::byte* piece, size_t bytes) {
    copy_bytes(next, piece, bytes);
    next += bytes;
  }
};

}  // namespace

// NOLINTNEXTLINE(readability-function-size)
void CompositeTransport::all_to_all(const Call& call, const CountMatrix& counts) {
  const Sizes sizes(hosts_, counts, c10::elementSize(call.type));
  const std::vector<int>& here = hosts_.ranks_of(host_);
  const int leader = here.front(), num_hosts = hosts_.num_hosts();

  // 1. Inside.
  std::vector<const std::byte*> piece_to;
  const std::byte* next = static_cast<const std::byte*>(call.input);
  for (int to = 0; to < size(); next += sizes.piece(rank(), to), ++to) piece_to.push_back(next);
  std::vector<size_t> sends, receives;
  for (const int other : here) {
    sends.push_back(sizes.piece(rank(), other) + (other == leader ? sizes.leaving(rank()) : 0));
    receives.push_back(sizes.piece(other, rank()) + (is_leader() ? sizes.leaving(other) : 0));
  }
  const auto packed = scratch(sum_of(sends)), received = scratch(sum_of(receives));
  Packer packer{packed.get()};
  for (const int other : here) {
    packer.add(piece_to[static_cast<size_t>(other)], sizes.piece(rank(), other));
    for (int host = 0; other == leader && host < num_hosts; ++host)
      for (const int to : hosts_.ranks_of(host))
        if (host != host_) packer.add(piece_to[static_cast<size_t>(to)], sizes.piece(rank(), to));
  }
  swap_inside(packed.get(), sends, received.get(), receives);

  // 2. Between leaders. `arrived` holds, by sending host and rank, the messages for the ranks of this host.
  size_t arrived_bytes = 0;
  for (const int other : here) arrived_bytes += sizes.coming(other);
  const auto arrived = scratch(is_leader() ? arrived_bytes : 0);
  on_leaders([&] {
    std::vector<Outgoing> outgoing;
    std::vector<Incoming> incoming;
    const std::byte* block = received.get();
    for (const int from : here) {
      block += sizes.piece(from, rank());
      for (int host = 0; host < num_hosts; ++host) {
        if (host == host_) continue;
        outgoing.push_back({host, block, sizes.to_host(from, host)});
        block += sizes.to_host(from, host);
      }
    }
    std::byte* place = arrived.get();
    for (int host = 0; host < num_hosts; ++host) {
      if (host == host_) continue;
      for (const int from : hosts_.ranks_of(host)) {
        incoming.push_back({host, place, sizes.to_host(from, host_)});
        place += sizes.to_host(from, host_);
      }
    }
    parts_.between->exchange(outgoing, incoming);
  });

  // 3. The leader distributes: to each rank its messages by sending host and rank.
  const auto dealt = scratch(is_leader() ? arrived_bytes : 0), mine = scratch(sizes.coming(rank()));
  std::vector<size_t> deals(here.size()), from_leader(here.size());
  from_leader[0] = sizes.coming(rank());
  if (is_leader()) {
    std::vector<Packer> hands;
    std::byte* hand = dealt.get();
    for (const int other : here) {
      deals[hands.size()] = sizes.coming(other);
      hands.push_back({hand});
      hand += sizes.coming(other);
    }
    const std::byte* piece = arrived.get();
    for (int host = 0; host < num_hosts; ++host)
      for (const int from : hosts_.ranks_of(host))
        for (size_t place = 0; host != host_ && place < here.size(); ++place) {
          hands[place].add(piece, sizes.piece(from, here[place]));
          piece += sizes.piece(from, here[place]);
        }
  }
  swap_inside(dealt.get(), deals, mine.get(), from_leader);

  // Assemble the output in rank order.
  std::vector<const std::byte*> piece_from(static_cast<size_t>(size()));
  next = received.get();
  for (size_t place = 0; place < here.size(); next += receives[place], ++place) piece_from[static_cast<size_t>(here[place])] = next;
  next = mine.get();
  for (int host = 0; host < num_hosts; ++host)
    for (const int from : hosts_.ranks_of(host)) {
      if (host == host_) continue;
      piece_from[static_cast<size_t>(from)] = next;
      next += sizes.piece(from, rank());
    }
  Packer output{static_cast<std::byte*>(call.output)};
  for (int from = 0; from < size(); ++from) output.add(piece_from[static_cast<size_t>(from)], sizes.piece(from, rank()));
}

}  // namespace cohort
