#include "cohort/comm/shm/shm_algorithms.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

#include "cohort/base/fail.h"
#include "cohort/comm/transport/calls.h"
#include "cohort/comm/transport/reduce.h"

namespace cohort {
namespace {

size_t sum(const uint64_t* counts, int num) { return static_cast<size_t>(std::accumulate(counts, counts + num, uint64_t{0})); }

/// Elements that `rank` computes: whole cache lines, so that no two ranks write to one.
struct Slice {
  size_t begin, end;
};
Slice slice_of(size_t count, size_t element_bytes, int rank, int size) {
  const size_t per_line = std::max<size_t>(1, 64 / element_bytes), lines = (count + per_line - 1) / per_line;
  const size_t index = static_cast<size_t>(rank), num = static_cast<size_t>(size);
  return {std::min(count, lines * index / num * per_line), std::min(count, lines * (index + 1) / num * per_line)};
}

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
  // Element-wise in-place results are harmless, and a broadcast's receivers have no input.
  if (call.op == Op::kAllReduce || call.op == Op::kReduce || call.op == Op::kBroadcast) return false;
  const auto* const input = static_cast<const std::byte*>(call.input ? call.input : call.output);
  const auto* const output = static_cast<const std::byte*>(call.output);
  const size_t given = input_bytes(call, rank, size), taken = output_bytes(call, rank, size);
  if (given == 0 || taken == 0) return false;
  const size_t own = static_cast<size_t>(rank) * rank_bytes(call);
  if ((call.op == Op::kAllGather || call.op == Op::kGather) && input == output + own) return false;
  if (call.op == Op::kScatter && output == input + own) return false;
  const std::less<const std::byte*> before;
  return before(input, output + taken) && before(output, input + given);
}

void check_counts(const ShmJob& job) {
  for (int from = 0; from < job.size; ++from)
    for (int to = 0; to < job.size; ++to) {
      const uint64_t sent = job.counts[static_cast<size_t>(from)][to], expected = job.counts[static_cast<size_t>(to)][job.size + from];
      if (sent != expected)
        fail(ErrorCode::kFailed, "all-to-all: rank ", from, " sends ", sent, " elements to rank ", to, ", which expects ", expected,
             "; exchange the counts first");
    }
}

// All-read: every rank reads the inputs of all others in place and computes its own result.
//
//   1. start: a rank makes its input readable (in the slot, or a copy) and publishes the slot.
//   2. finish: it waits for all slots, reads what it needs and writes its output.
//
// Cost for a rank, n bytes an input, p ranks: one published line, p - 1 lines waited for; n copied, p n read, n written for a reduction.
// One synchronisation, the minimum, but p times the reads of a sliced scheme: right for small inputs, which lie in caches. Copies are
// reused after all ranks have published that they are done (ShmBoard::Counters::completed), which needs no wait while the ring is long
// enough. Shared inputs are read in place; the caller then adds a step, since it may change them when its call returns.
//
// Source: fan-in/fan-out of Graham and Shipman (EuroPVM/MPI 2008), and the small-message path of DeepSpeed's shared-memory kernels, which
// copies results out of one fixed buffer and needs a second synchronisation for it; the ring of slots saves that one.

namespace {

void reduce_range(const ShmJob& job, size_t at) {
  constexpr int kFew = 16;
  const std::byte* few[kFew];
  std::vector<const std::byte*> many(job.size > kFew ? static_cast<size_t>(job.size) : 0);
  const std::byte** const arrays = job.size > kFew ? many.data() : few;
  for (int from = 0; from < job.size; ++from) arrays[from] = job.sources[static_cast<size_t>(from)] + at;
  std::byte* const output = job.output;
  reduce_arrays(&output, 1, arrays, static_cast<size_t>(job.size), job.count, job.type, job.reduction);
}

}  // namespace

void all_read(const ShmJob& job) {
  if (job.op == Op::kBarrier) return;
  if (job.reduces_whole()) {
    if (job.count > 0 && (job.op == Op::kAllReduce || job.is_root())) reduce_range(job, 0);
    return;
  }
  if (job.op == Op::kReduceScatter) {
    if (job.count > 0) reduce_range(job, static_cast<size_t>(job.rank) * job.bytes());
    return;
  }
  // Each rank begins with its neighbour, so that not all read one rank's memory at once.
  for (int step = 1; step <= job.size; ++step) {
    const int from = (job.rank + step) % job.size;
    const Route route = job.route(from, job.rank);
    if (route.bytes == 0) continue;
    // In place, this rank's own block is already there.
    if (from == job.rank && job.output + route.place == job.input + route.at) continue;
    std::memcpy(job.output + route.place, job.sources[static_cast<size_t>(from)] + route.at, route.bytes);
  }
}

// In-place push: all-reduce (or reduce) of arrays that all lie in shared memory, at whatever offsets.
//
//   1. start: rank r publishes where its array lies.
//   2. finish: it waits for all, reads slice r of all p arrays, computes in rank order and writes the result into all p arrays (of a
//      reduce: the root's).
//   3. One step, after which all ranks have all slices.
//
// Cost for a rank: n bytes read and n written, whatever p is; two synchronisations; no copy. The host moves 2 p n bytes, the lower bound
// where every rank keeps its own result.
//
// Source: single-copy collectives, XHC (Katevenis et al., CLUSTER 2022), and Rabenseifner's reduce-scatter (2004), whose all-gather becomes
// part of the write. Differences: memory is shared from the start, so nothing is attached or pinned; the order of summation is that of
// ranks.

void push_in_place(const ShmJob& job, ShmSteps& steps) {
  const Slice slice = slice_of(job.count, job.element_bytes, job.rank, job.size);
  const size_t at = slice.begin * job.element_bytes;
  std::vector<const std::byte*> arrays;
  for (const std::byte* source : job.sources) arrays.push_back(source + at);
  std::vector<std::byte*> results;
  for (int rank = 0; rank < job.size; ++rank)
    if (job.op == Op::kAllReduce || rank == job.root) results.push_back(job.targets[static_cast<size_t>(rank)] + at);
  reduce_arrays(results.data(), results.size(), arrays.data(), arrays.size(), slice.end - slice.begin, job.type, job.reduction);
  steps.next();
}

// Tiled reduction: all-reduce or reduce of arrays of which at least one is private.
//
// The arrays are cut into tiles, a tile into p slices. Three things happen to a tile, one in each of three successive steps:
//   1. stage: rank r copies its addends of the tile, without slice r, into shared memory;
//   2. reduce: it computes slice r from the tiles of the others and its own private addends, in rank order, writes the result into its
//   output
//      and into slice r of its own tile;
//   3. collect: it copies the other slices from the tiles of the ranks that computed them.
// Step i stages tile i, reduces tile i - 1 and collects tile i - 2, so that a step needs one synchronisation and early ranks find work.
//
// Cost for a rank, n bytes, p ranks, T bytes a tile, f = (p - 1) / p: n/T + 1 synchronisations; f n copied in (read and written), n read
// to reduce, n/p written twice, f n copied out: (4 f + 1 + 2/p) n, at p = 2 4 n. Copying everything in and letting every rank reduce
// everything would be 5 n at p = 2 and (p + 3) n in general.
//
// Source: reduce-scatter and all-gather of Rabenseifner (2004) on staging buffers as in DeepSpeed's large shared-memory all-reduce (which
// copies all addends in, waits three times a block, and does not overlap blocks); tiles that stay in cache after Peng et al. (SC 2023).

namespace {

class TiledReduction {
 public:
  TiledReduction(const ShmJob& job, ShmSteps& steps, size_t tile_bytes)
      : job_(job), steps_(steps), per_tile_(tile_bytes / job.element_bytes), arrays_(static_cast<size_t>(job.size)) {}

  void run() {
    const size_t num_tiles = (job_.count + per_tile_ - 1) / per_tile_;
    for (size_t step = 0; step < num_tiles + 2; ++step) {
      if (step < num_tiles) stage(step);
      if (step >= 1 && step - 1 < num_tiles) reduce(step - 1);
      if (step >= 2) collect(step - 2);
      if (step < num_tiles + 1) steps_.next();
    }
  }

 private:
  struct Range {
    size_t at, in_tile, count;  // Elements: offset in the array, in the tile, count.
    size_t bytes;
  };
  Range range(size_t tile, int rank) const {
    const size_t at = tile * per_tile_;
    const Slice slice = slice_of(std::min(per_tile_, job_.count - at), job_.element_bytes, rank, job_.size);
    return {at + slice.begin, slice.begin, slice.end - slice.begin, (slice.end - slice.begin) * job_.element_bytes};
  }
  size_t bytes_to(size_t elements) const { return elements * job_.element_bytes; }
  bool takes() const { return job_.op == Op::kAllReduce || job_.is_root(); }

  void stage(size_t tile) {
    for (int rank = 0; rank < job_.size; ++rank) {
      const Range of = range(tile, rank);
      if (rank != job_.rank && of.bytes > 0) std::memcpy(steps_.filling() + bytes_to(of.in_tile), job_.input + bytes_to(of.at), of.bytes);
    }
  }

  void reduce(size_t tile) {
    const Range of = range(tile, job_.rank);
    if (of.count == 0) return;
    for (int rank = 0; rank < job_.size; ++rank) {
      const bool own = rank == job_.rank;
      arrays_[static_cast<size_t>(rank)] = own ? job_.input + bytes_to(of.at) : steps_.current(rank) + bytes_to(of.in_tile);
    }
    std::byte* results[2] = {steps_.current(job_.rank) + bytes_to(of.in_tile), nullptr};
    if (takes()) results[1] = job_.output + bytes_to(of.at);
    reduce_arrays(results, takes() ? 2 : 1, arrays_.data(), arrays_.size(), of.count, job_.type, job_.reduction);
  }

  void collect(size_t tile) {
    if (!takes()) return;
    for (int step = 1; step < job_.size; ++step) {
      const int rank = (job_.rank + step) % job_.size;
      const Range of = range(tile, rank);
      if (of.bytes > 0) std::memcpy(job_.output + bytes_to(of.at), steps_.previous(rank) + bytes_to(of.in_tile), of.bytes);
    }
  }

  const ShmJob& job_;
  ShmSteps& steps_;
  const size_t per_tile_;
  std::vector<const std::byte*> arrays_;
};

}  // namespace

void tiled_reduction(const ShmJob& job, ShmSteps& steps, size_t tile_bytes) { TiledReduction(job, steps, tile_bytes).run(); }

// Tiled exchange: broadcast, all-gather, gather, scatter, all-to-all and reduce-scatter where some rank's input is private to it.
//
// A tile has one section for all receivers where they need the same bytes, else one per receiver. In step i every rank
//   1. stages round i: copies the i-th section of what each receiver needs into its tile;
//   2. takes round i - 1: copies its section out of the senders' tiles, or reduces it (reduce-scatter: its own addends straight from its
//      input, in rank order).
//
// Cost for a rank that sends g and receives t bytes: g + t copied (read and written), one synchronisation for each T or T/p bytes of the
// longest route. Senders and receivers work on different rounds, so a large broadcast takes the time of one copy, not two.
//
// Source: pipelined staging as in coll/sm of Open MPI; the rounds of all operations made one scheme by their routes are ours.

namespace {

class TiledExchange {
 public:
  TiledExchange(const ShmJob& job, ShmSteps& steps, size_t tile_bytes)
      : job_(job),
        steps_(steps),
        // Whole cache lines, hence whole elements.
        section_bytes_(job.same_for_all() ? tile_bytes : std::max<size_t>(64, tile_bytes / static_cast<size_t>(job.size) / 64 * 64)),
        arrays_(static_cast<size_t>(job.size)) {}

  void run() {
    const size_t num_rounds = (job_.longest_route() + section_bytes_ - 1) / section_bytes_;
    if (job_.op != Op::kReduceScatter) keep_own();
    for (size_t step = 0; step < num_rounds + 1; ++step) {
      if (step < num_rounds) stage(step);
      if (step >= 1) take(step - 1);
      if (step < num_rounds) steps_.next();
    }
  }

 private:
  /// The range of a route that is moved in a round.
  Route part(const Route& whole, size_t round) const {
    const size_t begin = std::min(whole.bytes, round * section_bytes_);
    return {whole.at + begin, whole.place + begin, std::min(section_bytes_, whole.bytes - begin)};
  }
  size_t section(int to) const { return job_.same_for_all() ? 0 : static_cast<size_t>(to) * section_bytes_; }

  void keep_own() {
    const Route own = job_.route(job_.rank, job_.rank);
    if (own.bytes > 0 && job_.output + own.place != job_.input + own.at)
      std::memcpy(job_.output + own.place, job_.input + own.at, own.bytes);
  }

  void stage(size_t round) {
    for (int to = 0; to < job_.size; ++to) {
      if (to == job_.rank) continue;
      const Route of = part(job_.route(job_.rank, to), round);
      if (of.bytes == 0) continue;
      std::memcpy(steps_.filling() + section(to), job_.input + of.at, of.bytes);
      if (job_.same_for_all()) return;
    }
  }

  void take(size_t round) {
    if (job_.op == Op::kReduceScatter) return reduce(round);
    for (int step = 1; step < job_.size; ++step) {
      const int from = (job_.rank + step) % job_.size;
      const Route of = part(job_.route(from, job_.rank), round);
      if (of.bytes > 0) std::memcpy(job_.output + of.place, steps_.current(from) + section(job_.rank), of.bytes);
    }
  }

  void reduce(size_t round) {
    const Route of = part(job_.route(job_.rank, job_.rank), round);
    for (int from = 0; from < job_.size; ++from)
      arrays_[static_cast<size_t>(from)] = from == job_.rank ? job_.input + of.at : steps_.current(from) + section(job_.rank);
    std::byte* const result = job_.output + of.place;
    reduce_arrays(&result, 1, arrays_.data(), arrays_.size(), of.bytes / job_.element_bytes, job_.type, job_.reduction);
  }

  const ShmJob& job_;
  ShmSteps& steps_;
  const size_t section_bytes_;
  std::vector<const std::byte*> arrays_;
};

}  // namespace

void tiled_exchange(const ShmJob& job, ShmSteps& steps, size_t tile_bytes) { TiledExchange(job, steps, tile_bytes).run(); }

}  // namespace cohort
