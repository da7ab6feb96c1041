#include "cohort/comm/shm/shm_job.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "cohort/base/fail.h"
#include "cohort/comm/transport/calls.h"

namespace cohort {
namespace {

size_t sum(const uint64_t* counts, int num) { return static_cast<size_t>(std::accumulate(counts, counts + num, uint64_t{0})); }

}  // namespace

Route ShmJob::route(int from, int to) const {
  const size_t piece = bytes(), of_from = static_cast<size_t>(from) * piece, of_to = static_cast<size_t>(to) * piece;
  switch (op) {
    case Op::kAllGather:
      return {0, of_from, piece};
    case Op::kBroadcast:
      return from == root ? Route{0, 0, piece} : Route{};
    case Op::kGather:
      return to == root ? Route{0, of_from, piece} : Route{};
    case Op::kScatter:
      return from == root ? Route{of_to, 0, piece} : Route{};
    case Op::kReduceScatter:
      return {of_to, 0, piece};
    case Op::kAllToAll: {
      if (counts.empty()) return {of_to, of_from, piece};
      const uint64_t* const sent = counts[static_cast<size_t>(from)];
      const uint64_t* const received = counts[static_cast<size_t>(to)] + size;
      return {sum(sent, to) * element_bytes, sum(received, from) * element_bytes, static_cast<size_t>(sent[to]) * element_bytes};
    }
    default:
      return {};
  }
}

size_t ShmJob::longest_route() const {
  if (op != Op::kAllToAll || counts.empty()) return size > 1 ? bytes() : 0;
  uint64_t longest = 0;
  for (int from = 0; from < size; ++from)
    for (int to = 0; to < size; ++to)
      if (from != to) longest = std::max(longest, counts[static_cast<size_t>(from)][to]);
  return static_cast<size_t>(longest) * element_bytes;
}

void fill_job(ShmJob& job, const Call& call, int rank, int size) {
  job.op = call.op;
  job.reduction = call.reduction;
  job.type = call.type;
  job.root = call.root;
  job.rank = rank;
  job.size = size;
  job.count = call.op == Op::kBarrier ? 0 : call.count;
  job.element_bytes = c10::elementSize(call.type);
  job.input = static_cast<const std::byte*>(call.input ? call.input : call.output);
  job.output = static_cast<std::byte*>(call.output);
  job.counts.clear();
}

bool overwrites_input(const Call& call, int rank, int size) {
  // Element for element over itself is harmless, and a broadcast's receivers give nothing.
  if (call.op == Op::kAllReduce || call.op == Op::kReduce || call.op == Op::kBroadcast) return false;
  const auto* const input = static_cast<const std::byte*>(call.input ? call.input : call.output);
  const auto* const output = static_cast<const std::byte*>(call.output);
  const size_t given = input_bytes(call, rank, size), taken = output_bytes(call, rank, size);
  if (given == 0 || taken == 0) return false;
  const size_t own = static_cast<size_t>(rank) * piece_bytes(call);
  if ((call.op == Op::kAllGather || call.op == Op::kGather) && input == output + own) return false;
  if (call.op == Op::kScatter && output == input + own) return false;
  const std::less<const std::byte*> before;
  return before(input, output + taken) && before(output, input + given);
}

void check_piece_counts(const ShmJob& job) {
  for (int from = 0; from < job.size; ++from)
    for (int to = 0; to < job.size; ++to) {
      const uint64_t sent = job.counts[static_cast<size_t>(from)][to], expected = job.counts[static_cast<size_t>(to)][job.size + from];
      if (sent != expected)
        fail(ErrorCode::kFailed, "all-to-all: rank ", from, " sends ", sent, " elements to rank ", to, ", which expects ", expected,
             "; exchange the counts first");
    }
}

}  // namespace cohort
