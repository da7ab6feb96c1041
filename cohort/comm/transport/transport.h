#pragma once
// Transports of one group: shared memory, Gloo, MPI, or shared memory inside hosts and a network between them. CollectiveBackend
// (collective_backend.h) adds c10d's interface, recording and asynchrony to any of them.

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/comm/transport/reduction.h"

namespace cohort {

enum class Op : uint8_t { kAllReduce, kReduce, kReduceScatter, kAllGather, kBroadcast, kAllToAll, kGather, kScatter, kBarrier };

COHORT_PROGRAM_API const char* name_of(Op op);  ///< "all-reduce"
const char* name_of(Reduction reduction);       ///< "sum"

/// A collective call of one rank. Memory is dense and must live and not change from start() to the end of finish().
///
/// `count` in elements of `type`: the whole tensor for all-reduce, reduce and broadcast; one rank's block for reduce-scatter (of its
/// output), all-gather, gather, scatter and an even all-to-all. Blocks are contiguous in rank order. `input` and `output` are equal or do
/// not overlap, except that all-gather's input may be its own block of the output.
struct Call {
  Op op = Op::kBarrier;
  Reduction reduction = Reduction::kSum;
  at::ScalarType type = at::kByte;
  int root = 0;
  const void* input = nullptr;
  void* output = nullptr;
  size_t count = 0;
  std::vector<size_t> send_counts, receive_counts;  ///< Uneven all-to-all: elements to and from each rank, which must match.
  const char* name = "";                            ///< Of the tensor, for messages; lives as long as the call.
  uint64_t sequence = 0;                            ///< Number of this call in its group, from 1.
  uint64_t handle = 0;                              ///< Used by the transport.
};

/// What must be equal on all ranks; compared before data moves.
struct Signature {
  Op op = Op::kBarrier;
  Reduction reduction = Reduction::kSum;
  int8_t type = 0;
  int8_t padding = 0;
  int32_t root = 0;
  uint64_t count = 0;
  uint64_t sequence = 0;
  char name[40] = {};  ///< Truncated; compared where both ranks gave one.
};
static_assert(sizeof(Signature) == 64);
Signature signature_of(const Call& call);

/// Error(kFailed) where `signatures` (one per rank) differ: names the calls, the minority, and what to look for. `group` appears in the
/// message.
void check_signatures(const Signature* signatures, int size, const char* group);

/// A point-to-point message under way.
class Message {
 public:
  virtual ~Message() = default;
  virtual bool done() = 0;  ///< Makes progress without waiting.
  /// std::runtime_error naming the peer when it has ended or after the time-out; Error(kFailed) when the sender's size differs.
  virtual void wait() = 0;
  virtual int source() = 0;  ///< Sender of a received message, after it is done.
};

/// One rank's side. One thread at a time. All ranks make the same collective calls in the same order. Errors: Error, or std::runtime_error
/// naming the missing rank.
class Transport {
 public:
  Transport(int rank, int size) : rank_(rank), size_(size) {}
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  virtual const char* name() const = 0;  ///< shm, gloo, mpi, shm+gloo, ...

  /// Announces a call and returns at once. Several may be started before the first is finished.
  virtual void start(Call&) {}
  /// Whether finish() of the oldest call would not wait for another rank to start it.
  virtual bool ready(const Call&) { return false; }
  /// Completes the oldest unfinished call on this rank, signatures checked.
  virtual void finish(Call& call) = 0;
  /// Whether calls should run on a thread of their own (a network, which works while this rank computes) or in the caller's (memory).
  virtual bool wants_own_thread() const = 0;

  /// `bytes` may be 0. Messages of one sender with one tag arrive in order. peer -1 in receive(): from any rank.
  virtual std::shared_ptr<Message> send(const void* data, size_t bytes, int peer, int tag) = 0;
  virtual std::shared_ptr<Message> receive(void* data, size_t bytes, int peer, int tag) = 0;

  /// Called after a failure, before it is explained: closes connections where peers would otherwise notice only the end of this process,
  /// and with it perhaps of the store that explains why. Nothing works afterwards.
  virtual void close_connections() {}

  /// Memory in which all-reduce is cheapest, or undefined where it makes no difference. Collective.
  virtual at::Tensor allocate(int64_t, at::TensorOptions) { return {}; }

 private:
  int rank_, size_;
};

}  // namespace cohort
