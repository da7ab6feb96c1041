#include "cohort/comm/transport/call_bytes.h"

#include <numeric>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

size_t sum_of(const std::vector<size_t>& counts) { return std::accumulate(counts.begin(), counts.end(), size_t{0}); }

}  // namespace

bool is_uneven(const Call& call) { return call.op == Op::kAllToAll && !(call.send_counts.empty() && call.receive_counts.empty()); }

size_t input_bytes(const Call& call, int rank, int size) {
  const size_t piece = piece_bytes(call), all = piece * static_cast<size_t>(size);
  switch (call.op) {
    case Op::kAllReduce:
    case Op::kReduce:
    case Op::kAllGather:
    case Op::kGather:
      return piece;
    case Op::kBroadcast:
      return rank == call.root ? piece : 0;
    case Op::kScatter:
      return rank == call.root ? all : 0;
    case Op::kReduceScatter:
      return all;
    case Op::kAllToAll:
      return is_uneven(call) ? sum_of(call.send_counts) * c10::elementSize(call.type) : all;
    case Op::kBarrier:
      return 0;
  }
  return 0;
}

size_t output_bytes(const Call& call, int rank, int size) {
  const size_t piece = piece_bytes(call), all = piece * static_cast<size_t>(size);
  switch (call.op) {
    case Op::kAllReduce:
    case Op::kBroadcast:
    case Op::kReduceScatter:
    case Op::kScatter:
      return piece;
    case Op::kReduce:
      return rank == call.root ? piece : 0;
    case Op::kGather:
      return rank == call.root ? all : 0;
    case Op::kAllGather:
      return all;
    case Op::kAllToAll:
      return is_uneven(call) ? sum_of(call.receive_counts) * c10::elementSize(call.type) : all;
    case Op::kBarrier:
      return 0;
  }
  return 0;
}

void check_call(const Call& call, int size) {
  if (call.root < 0 || call.root >= size)
    fail(ErrorCode::kBadInput, name_of(call.op), " of ", call.name, ": root ", call.root, " is not one of the ", size, " ranks");
  const auto fits = [&](const std::vector<size_t>& counts) { return counts.size() == static_cast<size_t>(size); };
  if (is_uneven(call) && !(fits(call.send_counts) && fits(call.receive_counts)))
    fail(ErrorCode::kBadInput, "all-to-all of ", call.name, ": ", call.send_counts.size(), " send and ", call.receive_counts.size(),
         " receive counts for ", size, " ranks");
}

}  // namespace cohort
