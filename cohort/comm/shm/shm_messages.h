#pragma once
// Point-to-point messages through shared memory.
//
// Every ordered pair of ranks has a channel: a ring of bytes in the sender's region (allocated with the pair's first message), the number
// of bytes written and the number consumed. A message is cut into frames of at most kFrameBytes: a header and data, or, where the data lies
// in the arena, a header with its offset. Messages of a pair are in order.
//
//   send: frames are written while the ring has room; the rest whenever this rank makes progress: in done() and wait() of any message, and
//     while it waits for anything else. A copied message is done when it is in the ring, one in the arena when it has been read.
//   receive: the first frame of a message finds the first receive posted for its tag and its data goes straight there; where there is none
//     it is kept aside, so that messages behind it can be received, and the next receive for that tag takes it.
//
// A rank reads frames whenever it makes progress, up to kMostKeptBytes per sender without a posted receive. So two ranks that send to each
// other before they receive do not wait for each other, unless they send more than that.
//
// Cost: two copies of a byte (one where it lies in the arena), two cache lines per frame.
// Source: the eager protocol and unexpected-message queue common to MPI libraries (MPICH's Nemesis: Buntinas et al., CCGrid 2006).

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "cohort/comm/shm/shm_board.h"
#include "cohort/comm/shm/shm_wait.h"
#include "cohort/comm/transport/transport.h"

namespace cohort {

/// One rank's side of all its channels. One thread at a time.
class ShmMessages : public std::enable_shared_from_this<ShmMessages> {
 public:
  static constexpr size_t kRingBytes = 256 << 10;
  static constexpr size_t kFrameBytes = 32 << 10;
  static constexpr size_t kMostKeptBytes = 64 << 20;

  ShmMessages(std::shared_ptr<ShmBoard> board, std::shared_ptr<ShmWaiter> waiter);
  ~ShmMessages();
  ShmMessages(const ShmMessages&) = delete;

  /// Error(kBadInput) for an invalid rank. The memory must live until the message is done, also when it is not waited for.
  std::shared_ptr<Message> send(const void* data, size_t bytes, int peer, int tag);
  std::shared_ptr<Message> receive(void* data, size_t bytes, int peer, int tag);

  /// Makes progress without waiting. Whether anything moved.
  bool progress();

 private:
  struct Frame;
  struct Sending;
  struct Receiving;
  struct Arriving;
  struct Peer;
  class Handle;

  bool push_frames(int to);
  bool push_frame(int to, Sending& message);
  bool learn_taken(int to);
  bool take_frames(int from);
  void take_frame(int from, const Frame& frame, const std::byte* data);
  std::shared_ptr<Arriving> begin_message(int from, const Frame& frame);
  std::shared_ptr<Receiving> find_posted(int from, int tag);
  void bind(Arriving& message, std::shared_ptr<Receiving> to);
  bool may_take(int from) const;
  bool has_pending() const;
  int check_peer(int peer, bool may_be_any) const;
  void wait(Handle& handle);

  std::shared_ptr<ShmBoard> board_;
  std::shared_ptr<ShmWaiter> waiter_;
  std::vector<Peer> peers_;
  std::list<std::shared_ptr<Receiving>> posted_;
  std::list<std::shared_ptr<Arriving>> unexpected_;  // In order of arrival, without a posted receive.
};

}  // namespace cohort
