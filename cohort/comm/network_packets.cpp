// Packets over messages: Gloo, MPI, or shared memory inside hosts and a network between them.
//
// A courier thread moves all packets over a group of its own, so that they travel while the caller computes:
//
//   outgoing: a notice with the packet's length, then the packet (packet.h), both posted at once.
//   incoming: a receive for the next notice of every peer is always posted; when one has arrived, the packet's receive and the next
//     notice's are posted. So data flows as soon as it is sent (Gloo moves none before its receive is posted), ranks that send to each
//     other do not wait for each other, and packets that were not asked for lie in the receiver's memory.
//
// Posted receives have the transport's time-out, so each rank sends an empty notice after a quarter of it. The last notice is a goodbye;
// the destructor waits briefly for those of the others, so that nobody takes an end for a failure.
//
// Cost: two messages per packet and one copy at the sender; none at the receiver. The thread polls every 50 us while the caller waits or
// messages are under way, else every 500 us; polling without a pause takes the cores from Gloo's threads.
#include <ATen/ops/empty.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/comm/packet.h"
#include "cohort/comm/transport/peers.h"
#include "cohort/world/process.h"

namespace cohort {
namespace {

using Clock = std::chrono::steady_clock;
using Work = c10::intrusive_ptr<c10d::Work>;

constexpr int64_t kAlive = -1, kGoodbye = -2;  // Sent in place of a length.
constexpr int kNoticeTag = 0, kPacketTag = 1;
constexpr auto kBusyNap = std::chrono::microseconds(50), kIdleNap = std::chrono::microseconds(500);
constexpr auto kLookAround = std::chrono::milliseconds(100), kPartingTime = std::chrono::milliseconds(1000);

class NetworkPackets final : public PacketTransport {
 public:
  explicit NetworkPackets(const Group& group);
  ~NetworkPackets() override;

  void send(int peer, const std::vector<at::Tensor>& tensors, size_t bytes) override;
  std::vector<at::Tensor> receive(int peer) override;
  bool ready(int peer) override;
  void flush() override;

 private:
  struct Message {
    at::Tensor memory;
    Work work;
    bool is_packet;
  };
  /// Used by the courier only.
  struct Peer {
    std::deque<Message> outgoing, incoming;  // In order of arrival.
    Message notice;                          // Posted receive of the next notice; none after the peer's goodbye.
    Clock::time_point last_sent;
  };
  /// Shared by the courier and the caller, under mutex_.
  struct Mailbox {
    std::deque<at::Tensor> outbox, arrived;
    size_t num_leaving = 0;  // Packets still in this rank's memory.
    bool has_ended = false;
  };

  static bool is_done(const Message& message);
  Message start_send(int peer, at::Tensor memory, int tag);
  Message start_receive(int peer, at::Tensor memory, int tag);
  void send_notice(int peer, int64_t length);
  void wait_for_notice(int peer);
  bool has_died(int peer) const;
  // Called by the courier; whether anything moved:
  bool post_outbox(int peer);
  bool finish_outgoing(int peer);
  bool take_notice(int peer);
  bool finish_incoming(int peer);
  bool step();
  void say_goodbye();
  bool has_parted() const;
  bool is_busy() const;
  bool is_closing();
  void doze();
  void run();

  template <typename Done>
  void wait(std::unique_lock<std::mutex>& lock, int peer, const char* what, bool for_sender, Done done);

  Group group_;
  const int rank_, size_;
  const c10::intrusive_ptr<c10d::Backend> backend_;
  const std::chrono::milliseconds timeout_;
  const std::vector<int> pids_;  // Of other processes on this host, else 0.
  std::vector<Peer> peers_;

  std::mutex mutex_;
  std::condition_variable caller_, courier_wakes_;
  std::vector<Mailbox> mailboxes_;
  bool caller_waits_ = false, closing_ = false;
  bool has_news_ = false;  // Wakes the courier.
  std::exception_ptr failure_;
  std::thread courier_;  // Last: uses all of the above.
};

/// Collective.
std::vector<int> pids_of_my_host(Group& group) {
  const std::vector<std::string> texts = group.all_gather_text(std::to_string(::getpid()), "process ids");
  std::vector<int> pids(texts.size(), 0);
  for (const int rank : group.ranks_of_my_host()) {
    const int pid = std::stoi(texts[static_cast<size_t>(rank)]);
    if (pid != ::getpid()) pids[static_cast<size_t>(rank)] = pid;
  }
  return pids;
}

NetworkPackets::NetworkPackets(const Group& group)
    : group_(group.split(all_ranks(group.size()), "the hand-over of tensors")),
      rank_(group.rank()),
      size_(group.size()),
      backend_(group_.c10d_backend()),
      timeout_(backend_->getBackendOptions()->timeout),
      pids_(pids_of_my_host(group_)),
      peers_(static_cast<size_t>(size_)),
      mailboxes_(static_cast<size_t>(size_)),
      courier_([this] { run(); }) {}

NetworkPackets::~NetworkPackets() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closing_ = has_news_ = true;
  }
  courier_wakes_.notify_one();
  courier_.join();
  backend_->shutdown();  // Ends the messages that are still under way.
}

void NetworkPackets::send(int peer, const std::vector<at::Tensor>& tensors, size_t bytes) {
  at::Tensor packet = at::empty({static_cast<int64_t>(bytes)}, at::kByte);
  pack(tensors, static_cast<std::byte*>(packet.data_ptr()));
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    Mailbox& box = mailboxes_[static_cast<size_t>(peer)];
    box.outbox.push_back(std::move(packet));
    ++box.num_leaving;
    has_news_ = true;
  }
  courier_wakes_.notify_one();
}

/// Waits for `done`, which is checked before errors so that what came before them is not lost.
template <typename Done>
void NetworkPackets::wait(std::unique_lock<std::mutex>& lock, int peer, const char* what, bool for_sender, Done done) {
  if (done()) return;
  caller_waits_ = has_news_ = true;
  courier_wakes_.notify_one();
  AwakeTimer waited;
  const double most_seconds = std::chrono::duration<double>(timeout_).count();
  bool was_dead = false;
  // A peer that said goodbye sends nothing more, but has received or will receive everything sent to it.
  const auto has_left = [&] { return for_sender && mailboxes_[static_cast<size_t>(peer)].has_ended; };
  while (!caller_.wait_for(lock, std::min(timeout_, kLookAround), [&] { return done() || failure_ || has_left(); })) {
    if (was_dead || waited.seconds() >= most_seconds) break;
    was_dead = has_died(peer);  // Look once more for what it had sent.
  }
  caller_waits_ = false;
  if (done()) return;
  if (failure_) std::rethrow_exception(failure_);
  if (was_dead) throw std::runtime_error(concat("rank ", peer, " has ended"));
  if (has_left()) throw std::runtime_error(concat("rank ", peer, " has ended its hand-over of tensors"));
  throw std::runtime_error(concat("rank ", peer, " ", what, " within ", most_seconds, " s"));
}

/// Whether the peer was a process of this host that has ended, which shared memory, unlike a connection, does not report.
bool NetworkPackets::has_died(int peer) const {
  const int pid = pids_[static_cast<size_t>(peer)];
  const char state = pid > 0 ? process_state(pid) : 'R';
  return state == 'X' || state == 'Z';
}

std::vector<at::Tensor> NetworkPackets::receive(int peer) {
  at::Tensor packet;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    Mailbox& box = mailboxes_[static_cast<size_t>(peer)];
    wait(lock, peer, "sent nothing", true, [&] { return !box.arrived.empty(); });
    packet = std::move(box.arrived.front());
    box.arrived.pop_front();
  }
  const auto owner = std::make_shared<at::Tensor>(packet);
  return unpack(static_cast<std::byte*>(packet.data_ptr()), packet.nbytes(), owner);
}

bool NetworkPackets::ready(int peer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_ || !mailboxes_[static_cast<size_t>(peer)].arrived.empty();
}

void NetworkPackets::flush() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (int peer = 0; peer < size_; ++peer)
    wait(lock, peer, "did not take all packets", false, [&] { return mailboxes_[static_cast<size_t>(peer)].num_leaving == 0; });
}

bool NetworkPackets::is_done(const Message& message) {
  if (!message.work->isCompleted()) return false;
  message.work->wait();  // For its error.
  return true;
}

NetworkPackets::Message NetworkPackets::start_send(int peer, at::Tensor memory, int tag) {
  std::vector<at::Tensor> tensors{memory};
  return {memory, backend_->send(tensors, peer, tag), tag == kPacketTag};
}

NetworkPackets::Message NetworkPackets::start_receive(int peer, at::Tensor memory, int tag) {
  std::vector<at::Tensor> tensors{memory};
  return {memory, backend_->recv(tensors, peer, tag), tag == kPacketTag};
}

void NetworkPackets::send_notice(int peer, int64_t length) {
  at::Tensor notice = at::empty({1}, at::kLong);
  *notice.mutable_data_ptr<int64_t>() = length;
  Peer& to = peers_[static_cast<size_t>(peer)];
  to.outgoing.push_back(start_send(peer, std::move(notice), kNoticeTag));
  to.last_sent = Clock::now();
}

void NetworkPackets::wait_for_notice(int peer) {
  peers_[static_cast<size_t>(peer)].notice = start_receive(peer, at::empty({1}, at::kLong), kNoticeTag);
}

bool NetworkPackets::post_outbox(int peer) {
  std::deque<at::Tensor> packets;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    packets.swap(mailboxes_[static_cast<size_t>(peer)].outbox);
  }
  Peer& to = peers_[static_cast<size_t>(peer)];
  for (at::Tensor& packet : packets) {
    send_notice(peer, packet.numel());
    to.outgoing.push_back(start_send(peer, std::move(packet), kPacketTag));
  }
  if (to.notice.work && Clock::now() - to.last_sent > timeout_ / 4) send_notice(peer, kAlive);
  return !packets.empty();
}

bool NetworkPackets::finish_outgoing(int peer) {
  Peer& to = peers_[static_cast<size_t>(peer)];
  size_t num_left = 0;
  bool moved = false;
  for (; !to.outgoing.empty() && is_done(to.outgoing.front()); to.outgoing.pop_front(), moved = true)
    num_left += to.outgoing.front().is_packet;
  if (num_left == 0) return moved;
  const std::lock_guard<std::mutex> lock(mutex_);
  Mailbox& box = mailboxes_[static_cast<size_t>(peer)];
  box.num_leaving -= num_left;
  if (box.num_leaving == 0) caller_.notify_one();
  return true;
}

bool NetworkPackets::take_notice(int peer) {
  Peer& from = peers_[static_cast<size_t>(peer)];
  if (!from.notice.work || !is_done(from.notice)) return false;
  const int64_t length = *from.notice.memory.const_data_ptr<int64_t>();
  if (length == kGoodbye) {
    from.notice = {};
    const std::lock_guard<std::mutex> lock(mutex_);
    mailboxes_[static_cast<size_t>(peer)].has_ended = from.incoming.empty();
    caller_.notify_one();
    return true;
  }
  if (length >= 0) from.incoming.push_back(start_receive(peer, at::empty({length}, at::kByte), kPacketTag));
  wait_for_notice(peer);
  return true;
}

bool NetworkPackets::finish_incoming(int peer) {
  Peer& from = peers_[static_cast<size_t>(peer)];
  bool moved = false;
  for (; !from.incoming.empty() && is_done(from.incoming.front()); from.incoming.pop_front(), moved = true) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Mailbox& box = mailboxes_[static_cast<size_t>(peer)];
    box.arrived.push_back(std::move(from.incoming.front().memory));
    box.has_ended = !from.notice.work && from.incoming.size() == 1;
    caller_.notify_one();
  }
  return moved;
}

bool NetworkPackets::step() {
  bool moved = false;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    moved |= post_outbox(peer);
    moved |= take_notice(peer);
    moved |= finish_incoming(peer);
    moved |= finish_outgoing(peer);
  }
  return moved;
}

void NetworkPackets::say_goodbye() {
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_) send_notice(peer, kGoodbye);
}

bool NetworkPackets::has_parted() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return !peer.notice.work && peer.outgoing.empty(); });
}

bool NetworkPackets::is_busy() const {
  return std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return !peer.outgoing.empty() || !peer.incoming.empty(); });
}

bool NetworkPackets::is_closing() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return closing_;
}

/// Sleeps briefly, unless there is something new.
void NetworkPackets::doze() {
  std::unique_lock<std::mutex> lock(mutex_);
  courier_wakes_.wait_for(lock, caller_waits_ || closing_ || is_busy() ? kBusyNap : kIdleNap, [this] { return has_news_; });
  has_news_ = false;
}

void NetworkPackets::run() {
  try {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      peers_[static_cast<size_t>(peer)].last_sent = Clock::now();
      wait_for_notice(peer);
    }
    std::optional<Clock::time_point> end;
    while (!end || (Clock::now() < *end && !has_parted())) {
      const bool closes = is_closing();  // Sampled before step(), so that the outbox leaves before the goodbye.
      if (step()) continue;
      if (end || !closes) {
        doze();
        continue;
      }
      end = Clock::now() + kPartingTime;
      say_goodbye();
    }
  } catch (...) {
    const std::lock_guard<std::mutex> lock(mutex_);
    failure_ = std::current_exception();
    caller_.notify_one();
  }
}

}  // namespace

std::unique_ptr<PacketTransport> make_network_packets(const Group& group) { return std::make_unique<NetworkPackets>(group); }

}  // namespace cohort
