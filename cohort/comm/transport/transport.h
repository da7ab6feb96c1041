#pragma once
// What carries the exchanges of one group: shared memory, Gloo, MPI, or shared memory inside each host with one of those between hosts.
// CollectiveBackend (collective_backend.h) puts c10d's interface, recording and asynchrony over any of them.

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

/// One collective call of one rank. Memory is dense; it must live, and not change, from start() to the end of finish().
///
/// `count` in elements of `type`: the whole tensor for all-reduce, reduce and broadcast; one rank's piece for reduce-scatter (of its
/// output), all-gather, gather, scatter and an even all-to-all. What several ranks hold lies in rank order without gaps. `input` and
/// `output` are equal or do not overlap, but that all-gather's input may be its own place in the output.
struct Call {
  Op op = Op::kBarrier;
  Reduction reduction = Reduction::kSum;
  at::ScalarType type = at::kByte;
  int root = 0;
  const void* input = nullptr;
  void* output = nullptr;
  size_t count = 0;
  std::vector<size_t> send_counts, receive_counts;  ///< All-to-all only: elements to and from each rank, both checked to agree.
  const char* name = "";                            ///< Of the tensor or parameter, for messages; lives as long as the call.
  uint64_t sequence = 0;                            ///< Number of this call in its group, from 1.
  uint64_t handle = 0;                              ///< For the transport.
};

/// What all ranks must agree on in a call; compared before data moves.
struct Signature {
  Op op = Op::kBarrier;
  Reduction reduction = Reduction::kSum;
  int8_t type = 0;
  int8_t padding = 0;
  int32_t root = 0;
  uint64_t count = 0;
  uint64_t sequence = 0;
  char name[40] = {};  ///< Cut off; compared only where both ranks gave one.
};
static_assert(sizeof(Signature) == 64);
Signature signature_of(const Call& call);

/// Throws Error(kFailed) where `signatures` (one a rank) differ: which ranks made which call, the minority named, and what to look for.
/// `group` names the group in the message.
void check_signatures(const Signature* signatures, int size, const char* group);

/// A point-to-point message under way.
class Message {
 public:
  virtual ~Message() = default;
  virtual bool done() = 0;  ///< Makes progress without waiting.
  /// std::runtime_error naming the peer when it has ended or the time-out has passed; Error(kFailed) when the sender's size is another.
  virtual void wait() = 0;
  virtual int source() = 0;  ///< Of a received message, after it is done.
};

/// One rank's end. One thread at a time. All ranks make the same collective calls in the same order. Errors: Error, or std::runtime_error
/// whose text names the rank that is missing.
class Transport {
 public:
  Transport(int rank, int size) : rank_(rank), size_(size) {}
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  virtual const char* name() const = 0;  ///< shm, gloo, mpi, shm+gloo, ...

  /// Announces a call; returns at once. Several may be started before the first is finished.
  virtual void start(Call&) {}
  /// Whether finish() of the oldest unfinished call would run without waiting for another rank to start it.
  virtual bool ready(const Call&) { return false; }
  /// Runs the oldest unfinished call to its end on this rank, signatures checked.
  virtual void finish(Call& call) = 0;
  /// Whether calls are best run on a thread of their own (the network works while this rank computes) or in the calling one (memory).
  virtual bool wants_own_thread() const = 0;

  /// `bytes` may be 0. Messages of one sender with one tag arrive in order. peer -1 in receive(): from any rank.
  virtual std::shared_ptr<Message> send(const void* data, size_t bytes, int peer, int tag) = 0;
  virtual std::shared_ptr<Message> receive(void* data, size_t bytes, int peer, int tag) = 0;

  /// After a failure, before it is explained: ends the connections where the others would otherwise notice only when this process has
  /// ended, and with it perhaps the store in which they could have read why. Nothing works afterwards.
  virtual void close_connections() {}

  /// Memory in which all-reduce is cheapest; collective. Undefined where it makes no difference.
  virtual at::Tensor allocate(int64_t, at::TensorOptions) { return {}; }

 private:
  int rank_, size_;
};

}  // namespace cohort
