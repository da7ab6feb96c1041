// Packets through shared memory.
//
// Each ordered pair of ranks has a ring of slots in the sender's region with two counters: slots written and slots taken.
//
//   send: pack the tensors into a block of the sender's region (one copy), write its offset into the next slot, raise `written`.
//   receive: wait for `written`, read the slot, raise `taken`; the tensors alias the sender's block. When the last of them ends, one atomic
//     exchange in the block's header releases it (shm_arena.h).
//
// A packet beyond the sender's limit of unread bytes is packed into private memory and copied over in a later call when packets have been
// taken; later ones to the same peer wait too. A pair without unread packets may always send one, so the limit cannot deadlock.
//
// Cost: one copy, two where a packet had to wait; four cache lines per packet; no system call unless the peer sleeps.
// Source: zero-copy receive over a shared heap, as in MPICH's Nemesis (Buntinas et al., CCGrid 2006); there the receiver copies out.
#include <sched.h>

#include <cstring>
#include <deque>

#include "cohort/base/fail.h"
#include "cohort/comm/group_internals.h"
#include "cohort/comm/packet.h"
#include "cohort/comm/shm/shm_arena.h"
#include "cohort/comm/shm/shm_wait.h"

namespace cohort {
namespace {

constexpr uint64_t kNumSlots = 256;
// A waiting rank yields before it spins, because other ranks or its own threads may need the core.
constexpr int kYields = 1000;

struct Slot {
  uint64_t offset, bytes;  // In the sender's region.
};
struct Pair {
  ShmCounter written, taken;
  Slot slots[kNumSlots];
};

class ShmPackets final : public PacketTransport {
 public:
  ShmPackets(Group group, int64_t unread_bytes);
  ~ShmPackets() override;

  void send(int peer, const std::vector<at::Tensor>& tensors, size_t bytes) override;
  std::vector<at::Tensor> receive(int peer) override;
  bool ready(int peer) override {
    progress();
    return has_come(peer);
  }
  void flush() override;

 private:
  struct Waiting {
    std::unique_ptr<std::byte[]> packet;
    size_t bytes;
  };
  struct Peer {
    uint64_t num_sent = 0, num_known_taken = 0, num_received = 0;
    std::deque<size_t> unread;  // Bytes of packets not taken by the peer.
    std::deque<Waiting> waiting;
  };

  Pair& pair(int from, int to) const { return reinterpret_cast<Pair*>(arena_->region(from) + board_)[to]; }
  Peer& state_of(int peer) { return peers_[static_cast<size_t>(peer)]; }
  bool has_come(int peer) { return ShmWaiter::has_reached(pair(peer, rank_).written, state_of(peer).num_received + 1); }
  bool has_room(const Peer& peer, size_t bytes) const;
  void publish_block(int peer, std::byte* block, size_t bytes);
  void learn_taken(int peer);
  bool progress();
  template <typename Done, typename Describe>
  void wait(Done done, ShmFlag& flag, int peer, Describe describe);
  std::shared_ptr<std::byte> take_block(int peer, size_t* bytes);

  Group group_;
  std::shared_ptr<ShmArena> arena_;
  const int rank_, size_;
  const size_t most_unread_bytes_;
  size_t board_;  // Offset in every region.
  ShmBlocks blocks_;
  std::vector<Peer> peers_;
  size_t unread_bytes_ = 0;
};

ShmPackets::ShmPackets(Group group, int64_t unread_bytes)
    : group_(std::move(group)),
      arena_(GroupInternals::arena(group_)),
      rank_(group_.rank()),
      size_(group_.size()),
      most_unread_bytes_(static_cast<size_t>(unread_bytes)),
      board_(arena_->reserve(static_cast<size_t>(size_) * sizeof(Pair))),
      blocks_(arena_),
      peers_(static_cast<size_t>(size_)) {}

ShmPackets::~ShmPackets() {
  // Release packets that were never received.
  for (int peer = 0; peer < size_; ++peer)
    while (peer != rank_ && has_come(peer)) {
      size_t bytes;
      take_block(peer, &bytes);
    }
}

bool ShmPackets::has_room(const Peer& peer, size_t bytes) const {
  if (peer.unread.empty()) return true;
  return peer.unread.size() < kNumSlots && unread_bytes_ + bytes <= most_unread_bytes_;
}

void ShmPackets::publish_block(int peer, std::byte* block, size_t bytes) {
  Peer& to = state_of(peer);
  Pair& ring = pair(rank_, peer);
  ring.slots[to.num_sent % kNumSlots] = {static_cast<uint64_t>(block - arena_->region(rank_)), bytes};
  to.unread.push_back(bytes);
  unread_bytes_ += bytes;
  publish(ring.written, ++to.num_sent);
}

void ShmPackets::send(int peer, const std::vector<at::Tensor>& tensors, size_t bytes) {
  progress();
  Peer& to = state_of(peer);
  if (to.waiting.empty() && has_room(to, bytes)) {
    std::byte* const block = blocks_.take(bytes);
    pack(tensors, block);
    publish_block(peer, block, bytes);
  } else {
    Waiting packet{std::make_unique_for_overwrite<std::byte[]>(bytes), bytes};
    pack(tensors, packet.packet.get());
    to.waiting.push_back(std::move(packet));
  }
}

void ShmPackets::learn_taken(int peer) {
  Peer& to = state_of(peer);
  const uint64_t taken = pair(rank_, peer).taken.value.load(std::memory_order_acquire);
  for (; to.num_known_taken < taken; ++to.num_known_taken) {
    unread_bytes_ -= to.unread.front();
    to.unread.pop_front();
  }
}

/// Publishes waiting packets that now fit. Whether any did.
bool ShmPackets::progress() {
  bool moved = false;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    learn_taken(peer);
    Peer& to = state_of(peer);
    for (; !to.waiting.empty() && has_room(to, to.waiting.front().bytes); to.waiting.pop_front()) {
      const Waiting& packet = to.waiting.front();
      std::byte* const block = blocks_.take(packet.bytes);
      std::memcpy(block, packet.packet.get(), packet.bytes);
      publish_block(peer, block, packet.bytes);
      moved = true;
    }
  }
  return moved;
}

/// The next packet of a peer, which has arrived; released when the pointer ends, in any thread.
std::shared_ptr<std::byte> ShmPackets::take_block(int peer, size_t* bytes) {
  Pair& ring = pair(peer, rank_);
  Peer& from = state_of(peer);
  const Slot slot = ring.slots[from.num_received % kNumSlots];
  *bytes = slot.bytes;
  std::shared_ptr<std::byte> block(arena_->region(peer) + slot.offset,
                                   [arena = arena_](std::byte* data) { ShmBlocks::release(*arena, data); });
  publish(ring.taken, ++from.num_received);
  return block;
}

/// `describe` returns the text of a time-out.
template <typename Done, typename Describe>
void ShmPackets::wait(Done done, ShmFlag& flag, int peer, Describe describe) {
  for (int yield = 0; yield < kYields; ++yield) {
    if (done()) return;
    if (!progress()) ::sched_yield();
  }
  GroupInternals::waiter(group_)->wait_until(done, [this] { return progress(); }, &flag, peer, rank_, describe());
}

std::vector<at::Tensor> ShmPackets::receive(int peer) {
  progress();
  wait([&] { return has_come(peer); }, pair(peer, rank_).written, peer, [&] { return concat("rank ", peer, " sent nothing"); });
  size_t bytes;
  const std::shared_ptr<std::byte> block = take_block(peer, &bytes);
  return unpack(block.get(), bytes, block);
}

void ShmPackets::flush() {
  progress();
  for (int peer = 0; peer < size_; ++peer) {
    const Peer& to = state_of(peer);
    wait([&] { return to.waiting.empty(); }, pair(rank_, peer).taken, peer,
         [&] { return concat("rank ", peer, " took none of the ", to.waiting.size(), " packets that wait for it"); });
  }
}

}  // namespace

std::unique_ptr<PacketTransport> make_shm_packets(Group group, int64_t unread_bytes) {
  return std::make_unique<ShmPackets>(std::move(group), unread_bytes);
}

}  // namespace cohort
