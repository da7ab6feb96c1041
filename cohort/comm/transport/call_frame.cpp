#include "cohort/comm/transport/call_frame.h"

#include <cstring>

#include "cohort/base/fail.h"
#include "cohort/comm/transport/reduce.h"
#include "cohort/comm/transport/signature.h"

namespace cohort {

void copy_bytes(void* to, const void* from, size_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

CallFrame make_frame(const Call& call, int rank, int size) {
  CallFrame frame;
  frame.signature = signature_of(call);
  if (is_uneven(call)) {
    frame.signature.count = kUnevenCount;  // Even where this rank's happen to be equal; make_count_matrix() compares them.
    return frame;
  }
  const size_t bytes = input_bytes(call, rank, size);
  if (bytes > CallFrame::kPayloadBytes) return frame;
  frame.num_payload_bytes = static_cast<uint32_t>(bytes);
  copy_bytes(frame.payload, call.input, bytes);
  return frame;
}

void check_frames(const CallFrame* frames, int size, const char* group) {
  std::vector<Signature> signatures;
  for (int rank = 0; rank < size; ++rank) signatures.push_back(frames[rank].signature);
  check_signatures(signatures.data(), size, group);
}

bool finish_from_frames(const CallFrame* frames, const Call& call, int rank, int size) {
  const bool one_has_all = call.op == Op::kScatter || call.op == Op::kReduceScatter || call.op == Op::kAllToAll;
  const size_t piece = piece_bytes(call), most = one_has_all ? piece * static_cast<size_t>(size) : piece;
  if (is_uneven(call) || most > CallFrame::kPayloadBytes) return false;
  if (call.op == Op::kAllReduce || call.op == Op::kReduce || call.op == Op::kReduceScatter) check_reduction(call.reduction, call.type);
  std::byte* output = static_cast<std::byte*>(call.output);
  const size_t mine = piece * static_cast<size_t>(rank);
  const auto reduce_at = [&](size_t offset) {
    // Payloads lie at an offset that fits every type.
    std::vector<const std::byte*> addends;
    for (int peer = 0; peer < size; ++peer) addends.push_back(frames[peer].payload + offset);
    reduce_arrays(&output, 1, addends.data(), addends.size(), call.count, call.type, call.reduction);
  };
  switch (call.op) {
    case Op::kAllReduce:
      reduce_at(0);
      break;
    case Op::kReduce:
      if (rank == call.root) reduce_at(0);
      break;
    case Op::kReduceScatter:
      reduce_at(mine);
      break;
    case Op::kBroadcast:
      if (rank != call.root || output) copy_bytes(output, frames[call.root].payload, piece);
      break;
    case Op::kScatter:
      copy_bytes(output, frames[call.root].payload + mine, piece);
      break;
    case Op::kAllGather:
    case Op::kGather:
    case Op::kAllToAll:
      if (call.op == Op::kGather && rank != call.root) break;
      for (int peer = 0; peer < size; ++peer)
        copy_bytes(output + piece * static_cast<size_t>(peer), frames[peer].payload + (call.op == Op::kAllToAll ? mine : 0), piece);
      break;
    case Op::kBarrier:
      break;
  }
  return true;
}

std::vector<uint64_t> count_record(const Call& call, int size) {
  std::vector<uint64_t> record;
  for (const std::vector<size_t>* counts : {&call.send_counts, &call.receive_counts})
    for (int rank = 0; rank < size; ++rank) record.push_back(is_uneven(call) ? (*counts)[static_cast<size_t>(rank)] : call.count);
  return record;
}

CountMatrix make_count_matrix(const std::vector<uint64_t>& records, int size, const Call& call, const char* group) {
  CountMatrix matrix{{}, size};
  const size_t p = static_cast<size_t>(size);
  for (size_t from = 0; from < p; ++from)
    for (size_t to = 0; to < p; ++to) {
      const uint64_t sent = records[from * 2 * p + to], expected = records[to * 2 * p + p + from];
      if (sent != expected)
        fail(ErrorCode::kFailed, "all-to-all number ", call.sequence, " of ", call.name, " in ", group, ": rank ", from, " sends ", sent,
             " elements to rank ", to, ", which expects ", expected, "; give both the same count");
      matrix.counts.push_back(sent);
    }
  return matrix;
}

}  // namespace cohort
