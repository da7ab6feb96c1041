#pragma once
// Collectives and messages between ranks of one host through shared memory.
//
// start() announces a call in a slot (shm_board.h) with its signature and, where it is small, its data; finish() waits for the slots of all
// ranks, compares the signatures and runs one of the algorithms of shm_algorithms.h:
//
//   input of every rank                              algorithm           synchronisations after the slots
//   in the slot, or copied (up to flat_bytes)        all-read            none
//   in the arena, all-reduce or reduce               in-place push       1
//   in the arena, other calls                        all-read in place   1
//   anything else                                    tiles               1 per tile
//
// A rank states in its slot how its input can be read, so the choice follows from what all ranks know and is the same everywhere.
// Reductions are ((x0 op x1) op x2) op ... in every algorithm: bitwise equal on all ranks and in every run.

#include <array>
#include <deque>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "cohort/comm/shm/shm_algorithms.h"
#include "cohort/comm/shm/shm_board.h"
#include "cohort/comm/shm/shm_wait.h"
#include "cohort/comm/transport/transport.h"

namespace cohort {

class ShmMessages;

/// Sizes at which shared memory changes its way of moving data.
struct ShmTuning {
  size_t flat_bytes = 4 << 10;    ///< Private inputs up to this size are copied and read by all; larger ones go through tiles.
  size_t direct_bytes = 1 << 10;  ///< Shared inputs up to this size are copied and read by all; larger ones are used in place.
  size_t tile_bytes = 512 << 10;  ///< At most ShmBoard::kTileBytes.
  bool measured = false;

  /// "copied up to 4.0 KiB (in shared memory up to 1.0 KiB), tiles of 512.0 KiB, measured".
  std::string text() const;
};

class ShmTransport : public Transport {
 public:
  /// Calls that may be started and unfinished; one more finishes the oldest (whose error is thrown by its own finish()).
  static constexpr uint64_t kMaxUnderWay = ShmBoard::kNumSlots / 2;

  /// Collective. `pids`: process of each rank. `group` names the group in messages.
  ShmTransport(std::shared_ptr<ShmArena> arena, const std::vector<int>& pids, double timeout_seconds, const ShmTuning& tuning = {},
               std::string group = "shm");
  ~ShmTransport() override;

  const char* name() const override { return "shm"; }
  void start(Call& call) override;
  bool ready(const Call& call) override;
  /// Starts the call where necessary. Calls are finished in the order in which they were started. After an error that all ranks see alike
  /// (different calls, an invalid reduction) the group is still usable; after a missing rank it is not.
  void finish(Call& call) override;
  bool wants_own_thread() const override { return false; }
  std::shared_ptr<Message> send(const void* data, size_t bytes, int peer, int tag) override;
  std::shared_ptr<Message> receive(void* data, size_t bytes, int peer, int tag) override;
  at::Tensor allocate(int64_t num_elements, at::TensorOptions options) override { return arena()->allocate(num_elements, options); }

  const std::shared_ptr<ShmArena>& arena() const { return board_->arena(); }
  const ShmWaiter& waiter() const { return *waiter_; }
  const ShmTuning& tuning() const { return tuning_; }
  /// Must be the same on all ranks, while no call is under way.
  void set_tuning(const ShmTuning& tuning);

 private:
  /// A range of this rank's ring with the copy of a call's input.
  struct Copy {
    uint64_t number;
    size_t begin, end;
  };
  struct UnderWay {
    Call* call = nullptr;
    std::exception_ptr error;  // Of a call finished by start().
  };
  UnderWay& under_way(uint64_t number) { return under_way_[number % ShmBoard::kNumSlots]; }
  void make_room(uint64_t number);
  void place_input(const Call& call, ShmSlot& slot, uint64_t number);
  void place_counts(const Call& call, uint64_t number);
  bool is_shared(const Call& call, size_t given, ShmSlot::Offsets* offsets) const;
  std::byte* take_from_ring(size_t bytes, uint64_t number);
  void learn_completed();
  void finish_oldest();
  void run(const Call& call, uint64_t number);
  void check(const Call& call, uint64_t number);
  void read_slots(uint64_t number, bool* any_private, bool* any_shared);
  void move_data(const Call& call, uint64_t number);

  std::shared_ptr<ShmBoard> board_;
  std::shared_ptr<ShmWaiter> waiter_;
  ShmSteps steps_;
  std::shared_ptr<ShmMessages> messages_;
  ShmTuning tuning_;
  std::string group_;
  std::array<UnderWay, ShmBoard::kNumSlots> under_way_;
  std::deque<Copy> copies_;  // Oldest first.
  uint64_t started_ = 0, finished_ = 0, published_ = 0;
  uint64_t completed_by_all_ = 0;
  ShmJob job_;  // Of the running call; kept for its memory.
};

/// Measures the sizes of ShmTuning with this group: collective, for about `most_seconds` of rank 0's time. All ranks use rank 0's results
/// from then on. Where ranks share cores the defaults stay, since the scheduler would dominate the times. No call may be under way.
ShmTuning tune(ShmTransport& transport, double most_seconds = 6e-3);

}  // namespace cohort
