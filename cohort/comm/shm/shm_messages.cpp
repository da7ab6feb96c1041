#include "cohort/comm/shm/shm_messages.h"

#include <algorithm>
#include <cstring>

#include "cohort/base/fail.h"

namespace cohort {

struct ShmMessages::Frame {
  enum class Kind : uint32_t {
    kData,    // `length` bytes follow.
    kShared,  // The message lies at `offset` of the sender's region.
    kSkip,    // Padding up to the ring's end.
  };
  static constexpr size_t kHeaderBytes = 64;

  uint64_t message_bytes = 0, length = 0, offset = 0;
  int32_t tag = 0;
  Kind kind = Kind::kData;

  /// Bytes occupied in the ring.
  size_t ring_bytes() const { return kHeaderBytes + (kind == Kind::kShared ? 0 : (length + 63) / 64 * 64); }
};

struct ShmMessages::Sending {
  const std::byte* data;
  size_t bytes;
  int tag;
  size_t written = 0;
  uint64_t taken_at = 0;  // In the arena: read when so much of the ring is consumed.
  bool done = false;
};

struct ShmMessages::Receiving {
  std::byte* data;
  size_t bytes;
  int peer, tag;  // Peer -1: any.
  bool done = false;
  int source = -1;
  std::string error;
};

struct ShmMessages::Arriving {
  int from, tag;
  size_t bytes, got = 0;
  std::vector<std::byte> kept;    // Buffer without a posted receive.
  std::shared_ptr<Receiving> to;  // The matching receive.
};

struct ShmMessages::Peer {
  std::deque<std::shared_ptr<Sending>> outgoing;  // Not completely in the ring.
  std::deque<std::shared_ptr<Sending>> untaken;   // In the arena, not read.
  std::byte* ring = nullptr;                      // To this peer.
  uint64_t written = 0, consumed = 0;
  std::shared_ptr<Arriving> arriving;  // Being received.
  size_t kept_bytes = 0;
};

class ShmMessages::Handle : public Message {
 public:
  Handle(std::shared_ptr<ShmMessages> messages, std::shared_ptr<Sending> sending, std::shared_ptr<Receiving> receiving, int peer)
      : messages_(std::move(messages)), sending_(std::move(sending)), receiving_(std::move(receiving)), peer_(peer) {}

  bool done() override {
    if (!is_done()) messages_->progress();
    return is_done();
  }
  void wait() override {
    if (!done()) messages_->wait(*this);
    if (receiving_ && !receiving_->error.empty()) throw Error(ErrorCode::kFailed, receiving_->error);
  }
  int source() override { return receiving_ ? receiving_->source : messages_->board_->rank(); }

  bool is_done() const { return sending_ ? sending_->done : receiving_->done; }
  bool is_send() const { return sending_ != nullptr; }
  int peer() const { return peer_; }
  int tag() const { return sending_ ? sending_->tag : receiving_->tag; }

 private:
  std::shared_ptr<ShmMessages> messages_;
  std::shared_ptr<Sending> sending_;
  std::shared_ptr<Receiving> receiving_;
  int peer_;
};

ShmMessages::ShmMessages(std::shared_ptr<ShmBoard> board, std::shared_ptr<ShmWaiter> waiter)
    : board_(std::move(board)), waiter_(std::move(waiter)), peers_(static_cast<size_t>(board_->size())) {
  waiter_->set_idle([this] {
    if (progress()) return ShmWaiter::Idle::kMoved;
    return has_pending() ? ShmWaiter::Idle::kPending : ShmWaiter::Idle::kNothing;
  });
}

ShmMessages::~ShmMessages() {
  waiter_->set_idle(nullptr);
  for (int to = 0; to < board_->size(); ++to) {
    const Peer& peer = peers_[static_cast<size_t>(to)];
    // Unread messages stay for the receiver until the arena ends.
    if (peer.ring && ShmWaiter::has_reached(board_->channel(board_->rank(), to).consumed, peer.written))
      board_->arena()->release_local(peer.ring, kRingBytes);
  }
}

int ShmMessages::check_peer(int peer, bool may_be_any) const {
  if (peer < (may_be_any ? -1 : 0) || peer >= board_->size())
    fail(ErrorCode::kBadInput, "rank ", board_->rank(), ": a message ", may_be_any ? "from" : "to", " rank ", peer, " of a group of ",
         board_->size());
  return peer;
}

bool ShmMessages::has_pending() const {
  return !posted_.empty() ||
         std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return !peer.outgoing.empty() || !peer.untaken.empty(); });
}

bool ShmMessages::progress() {
  bool moved = false;
  for (int peer = 0; peer < board_->size(); ++peer) {
    if (peer == board_->rank()) continue;
    moved |= push_frames(peer);
    moved |= take_frames(peer);
  }
  return moved;
}

void ShmMessages::wait(Handle& handle) {
  const int self = board_->rank(), peer = handle.peer();
  ShmFlag* flag = nullptr;
  if (peer >= 0) flag = handle.is_send() ? &board_->channel(self, peer).consumed : &board_->channel(peer, self).written;
  const std::string who = peer >= 0 ? concat("rank ", peer, " did not") : concat("no rank did");
  waiter_->wait_until([&] { return handle.is_done(); }, [this] { return progress(); }, flag, peer, self,
                      concat(who, handle.is_send() ? " take" : " send", " a message with tag ", handle.tag()));
}

// Sending.

std::shared_ptr<Message> ShmMessages::send(const void* data, size_t bytes, int peer, int tag) {
  check_peer(peer, false);
  auto message = std::make_shared<Sending>(Sending{static_cast<const std::byte*>(data), bytes, tag});
  if (peer == board_->rank()) {
    take_frame(peer, {bytes, bytes, 0, tag, Frame::Kind::kData}, message->data);
    message->done = true;
  } else {
    Peer& to = peers_[static_cast<size_t>(peer)];
    if (!to.ring) {
      to.ring = board_->arena()->allocate_local(kRingBytes);
      board_->channel(board_->rank(), peer)
          .ring.store(static_cast<uint64_t>(to.ring - board_->arena()->region(board_->rank())), std::memory_order_release);
    }
    to.outgoing.push_back(message);
    push_frames(peer);
  }
  return std::make_shared<Handle>(shared_from_this(), std::move(message), nullptr, peer);
}

bool ShmMessages::push_frames(int to) {
  Peer& peer = peers_[static_cast<size_t>(to)];
  bool moved = learn_taken(to);
  while (!peer.outgoing.empty() && push_frame(to, *peer.outgoing.front())) {
    moved = true;
    const std::shared_ptr<Sending>& message = peer.outgoing.front();
    if (message->taken_at > 0) peer.untaken.push_back(message);
    if (message->taken_at > 0 || message->done) peer.outgoing.pop_front();
  }
  return moved;
}

/// Completes messages in the arena that the receiver has read.
bool ShmMessages::learn_taken(int to) {
  Peer& peer = peers_[static_cast<size_t>(to)];
  bool moved = false;
  while (!peer.untaken.empty() && ShmWaiter::has_reached(board_->channel(board_->rank(), to).consumed, peer.untaken.front()->taken_at)) {
    peer.untaken.front()->done = moved = true;
    peer.untaken.pop_front();
  }
  return moved;
}

/// Writes one frame; false when the ring is full.
bool ShmMessages::push_frame(int to, Sending& message) {
  Peer& peer = peers_[static_cast<size_t>(to)];
  ShmChannel& channel = board_->channel(board_->rank(), to);
  const size_t room = kRingBytes - static_cast<size_t>(peer.written - channel.consumed.value.load(std::memory_order_acquire));
  const size_t at = static_cast<size_t>(peer.written % kRingBytes), left = message.bytes - message.written;
  size_t offset = 0;
  Frame frame{message.bytes, std::min(left, kFrameBytes - Frame::kHeaderBytes), 0, message.tag, Frame::Kind::kData};
  // Copying a small message is faster than waiting for its reader.
  if (message.bytes > kFrameBytes && board_->arena()->offset_of(message.data, message.bytes, &offset))
    frame = {message.bytes, message.bytes, offset, message.tag, Frame::Kind::kShared};
  if (at + frame.ring_bytes() > kRingBytes) frame = {0, kRingBytes - at - Frame::kHeaderBytes, 0, 0, Frame::Kind::kSkip};
  if (frame.ring_bytes() > room) return false;
  std::memcpy(peer.ring + at, &frame, sizeof frame);
  if (frame.kind == Frame::Kind::kData && frame.length > 0)
    std::memcpy(peer.ring + at + Frame::kHeaderBytes, message.data + message.written, frame.length);
  peer.written += frame.ring_bytes();
  if (frame.kind == Frame::Kind::kShared) message.taken_at = peer.written;
  if (frame.kind == Frame::Kind::kData) {
    message.written += frame.length;
    message.done = message.written == message.bytes;
  }
  publish(channel.written, peer.written);
  return true;
}

// Receiving.

std::shared_ptr<Message> ShmMessages::receive(void* data, size_t bytes, int peer, int tag) {
  check_peer(peer, true);
  auto message = std::make_shared<Receiving>(Receiving{static_cast<std::byte*>(data), bytes, peer, tag});
  const auto found = std::find_if(unexpected_.begin(), unexpected_.end(), [&](const std::shared_ptr<Arriving>& arriving) {
    return arriving->tag == tag && (peer < 0 || arriving->from == peer);
  });
  if (found == unexpected_.end()) {
    posted_.push_back(message);
  } else {
    bind(**found, message);
    unexpected_.erase(found);
  }
  return std::make_shared<Handle>(shared_from_this(), nullptr, std::move(message), peer);
}

/// Whether frames of `from` may be read: a receive is posted, or there is room to buffer them.
bool ShmMessages::may_take(int from) const {
  const Peer& peer = peers_[static_cast<size_t>(from)];
  if (peer.kept_bytes < kMostKeptBytes || (peer.arriving && peer.arriving->to)) return true;
  return std::any_of(posted_.begin(), posted_.end(),
                     [&](const std::shared_ptr<Receiving>& posted) { return posted->peer < 0 || posted->peer == from; });
}

bool ShmMessages::take_frames(int from) {
  ShmChannel& channel = board_->channel(from, board_->rank());
  Peer& peer = peers_[static_cast<size_t>(from)];
  const uint64_t written = channel.written.value.load(std::memory_order_acquire), before = peer.consumed;
  if (written == before) return false;
  const std::byte* const region = board_->arena()->region(from);
  const std::byte* const ring = region + channel.ring.load(std::memory_order_acquire);
  while (peer.consumed < written && may_take(from)) {
    const std::byte* const at = ring + peer.consumed % kRingBytes;
    Frame frame;
    std::memcpy(&frame, at, sizeof frame);
    if (frame.kind != Frame::Kind::kSkip)
      take_frame(from, frame, frame.kind == Frame::Kind::kShared ? region + frame.offset : at + Frame::kHeaderBytes);
    peer.consumed += frame.ring_bytes();
    publish(channel.consumed, peer.consumed);
  }
  return peer.consumed != before;
}

void ShmMessages::take_frame(int from, const Frame& frame, const std::byte* data) {
  Peer& peer = peers_[static_cast<size_t>(from)];
  if (!peer.arriving) peer.arriving = begin_message(from, frame);
  Arriving& message = *peer.arriving;
  std::byte* const target = !message.to ? message.kept.data() : message.to->error.empty() ? message.to->data : nullptr;
  if (target && frame.length > 0) std::memcpy(target + message.got, data, frame.length);
  message.got += frame.length;
  if (message.got < message.bytes) return;
  if (message.to) message.to->done = true;
  peer.arriving.reset();
}

std::shared_ptr<ShmMessages::Arriving> ShmMessages::begin_message(int from, const Frame& frame) {
  auto message = std::make_shared<Arriving>(Arriving{from, frame.tag, static_cast<size_t>(frame.message_bytes)});
  peers_[static_cast<size_t>(from)].kept_bytes += message->bytes;
  if (std::shared_ptr<Receiving> posted = find_posted(from, frame.tag)) {
    bind(*message, std::move(posted));
  } else {
    message->kept.resize(message->bytes);
    unexpected_.push_back(message);
  }
  return message;
}

/// Removes and returns the first matching posted receive.
std::shared_ptr<ShmMessages::Receiving> ShmMessages::find_posted(int from, int tag) {
  const auto found = std::find_if(posted_.begin(), posted_.end(), [&](const std::shared_ptr<Receiving>& posted) {
    return posted->tag == tag && (posted->peer < 0 || posted->peer == from);
  });
  if (found == posted_.end()) return nullptr;
  std::shared_ptr<Receiving> posted = *found;
  posted_.erase(found);
  return posted;
}

/// Directs a message to a receive, including what has arrived.
void ShmMessages::bind(Arriving& message, std::shared_ptr<Receiving> to) {
  peers_[static_cast<size_t>(message.from)].kept_bytes -= message.bytes;
  to->source = message.from;
  if (message.bytes != to->bytes) {
    to->error = concat("rank ", message.from, " sent ", message.bytes, " bytes with tag ", message.tag, ", rank ", board_->rank(),
                       " expects ", to->bytes);
  } else if (message.got > 0 && !message.kept.empty()) {
    std::memcpy(to->data, message.kept.data(), message.got);
  }
  message.kept = {};
  to->done = message.got == message.bytes;
  message.to = std::move(to);
}

}  // namespace cohort
