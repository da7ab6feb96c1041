#include "cohort/comm/transport/calls.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <string_view>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/comm/transport/reduce.h"

namespace cohort {

namespace {

template <typename Value, size_t kCount>
const char* name_in(const char* const (&names)[kCount], Value value, const char* unknown) {
  const auto index = static_cast<size_t>(value);
  return index < kCount ? names[index] : unknown;  // Another rank's record may hold anything.
}

}  // namespace

const char* name_of(Op op) {
  static constexpr const char* kNames[] = {"all-reduce", "reduce", "reduce-scatter", "all-gather", "broadcast",
                                           "all-to-all", "gather", "scatter",        "barrier"};
  return name_in(kNames, op, "unknown operation");
}

const char* name_of(Reduction reduction) {
  static constexpr const char* kNames[] = {"sum", "average", "product", "minimum", "maximum", "bitwise and", "bitwise or", "bitwise xor"};
  return name_in(kNames, reduction, "unknown reduction");
}

namespace {

bool reduces(Op op) { return op == Op::kAllReduce || op == Op::kReduce || op == Op::kReduceScatter; }
bool has_root(Op op) { return op == Op::kReduce || op == Op::kBroadcast || op == Op::kGather || op == Op::kScatter; }

/// Ranks that make the same call.
struct Party {
  Signature call;
  std::vector<int> ranks;
};

/// Groups ranks by their call, the largest group last. A rank without a name joins the first that fits.
std::vector<Party> parties_of(const Signature* signatures, int size) {
  std::vector<Party> parties;
  for (int rank = 0; rank < size; ++rank) {
    const auto mine =
        std::find_if(parties.begin(), parties.end(), [&](const Party& party) { return same_call(party.call, signatures[rank]); });
    if (mine == parties.end()) {
      parties.push_back({signatures[rank], {rank}});
    } else {
      mine->ranks.push_back(rank);
      if (mine->call.name[0] == 0) mine->call = signatures[rank];
    }
  }
  std::stable_sort(parties.begin(), parties.end(), [](const Party& a, const Party& b) { return a.ranks.size() < b.ranks.size(); });
  return parties;
}

/// Advice from the difference between two calls.
std::string advice(const Signature& odd, const Signature& usual, const std::string& who) {
  const bool named = odd.name[0] != 0 && usual.name[0] != 0;
  const bool other_name = named && std::memcmp(odd.name, usual.name, sizeof odd.name) != 0;
  if (odd.sequence != usual.sequence) return "the ranks have made different numbers of calls";
  if (odd.op != usual.op || other_name)
    return who + " probably skipped a call or made one more: look for a branch that depends on the rank or on its data";
  if (odd.type != usual.type) return who + " uses another data type: convert the tensor, or give all ranks the same precision";
  if (odd.count != usual.count)
    return who + " has another shape" + (named ? "" : " or probably skipped a call") +
           ": look for a model, batch or last batch whose size depends on the rank";
  if (odd.root != usual.root) return who + " names another root";
  return who + " asks for another reduction";
}

}  // namespace

void copy_name(char* to, const char* name) {
  constexpr size_t kRoom = sizeof Signature::name - 1;
  std::memset(to, 0, sizeof Signature::name);
  const std::string_view whole(name);
  if (whole.size() <= kRoom) {
    std::memcpy(to, name, whole.size());
    return;
  }
  constexpr std::string_view kDots = "...", kClosed = "...)";
  if (whole.find(' ') == whole.npos) {
    // Paths of tensors differ at their ends: "...layers.11.attention.query.weight".
    const size_t begin = whole.size() - (kRoom - kDots.size()), dot = whole.find_first_of("./", begin - 1);
    const std::string_view end = whole.substr(dot < begin + kRoom / 2 ? dot + 1 : begin);
    std::memcpy(to, kDots.data(), kDots.size());
    std::memcpy(to + kDots.size(), end.data(), end.size());
    return;
  }
  const std::string_view begin = whole.substr(0, length_of_whole_words(whole, kRoom - kClosed.size()));
  const bool is_open = std::count(begin.begin(), begin.end(), '(') > std::count(begin.begin(), begin.end(), ')');
  const std::string_view end = is_open ? kClosed : kDots;
  std::memcpy(to, begin.data(), begin.size());
  std::memcpy(to + begin.size(), end.data(), end.size());
}

Signature signature_of(const Call& call) {
  Signature signature;
  signature.op = call.op;
  // A thread whose wait has timed out may read it while the lane's thread numbers the call.
  signature.sequence = std::atomic_ref(const_cast<uint64_t&>(call.sequence)).load(std::memory_order_relaxed);
  // Unused fields must not make two calls differ.
  if (reduces(call.op)) signature.reduction = call.reduction;
  if (has_root(call.op)) signature.root = call.root;
  if (call.op != Op::kBarrier) {
    signature.type = static_cast<int8_t>(call.type);
    signature.count = call.send_counts.empty() ? call.count : kUnevenCount;
  }
  if (call.name && call.name[0]) copy_name(signature.name, call.name);
  return signature;
}

bool same_call(const Signature& one, const Signature& other, bool compare_sequence) {
  return one.op == other.op && one.reduction == other.reduction && one.type == other.type && one.root == other.root &&
         one.count == other.count && (!compare_sequence || one.sequence == other.sequence) &&
         (one.name[0] == 0 || other.name[0] == 0 || std::memcmp(one.name, other.name, sizeof one.name) == 0);
}

std::string describe(const Signature& signature) {
  std::string text = concat(name_of(signature.op), " #", signature.sequence);
  if (signature.name[0]) text += concat(" of ", std::string(signature.name, ::strnlen(signature.name, sizeof signature.name)));
  if (signature.op == Op::kBarrier) return text;
  text += signature.count == kUnevenCount ? std::string(" (uneven ") : concat(" (", signature.count, " ");
  text += c10::toString(static_cast<at::ScalarType>(signature.type));
  if (reduces(signature.op)) text += concat(", ", name_of(signature.reduction));
  if (has_root(signature.op)) text += concat(", root ", signature.root);
  return text + ")";
}

std::string describe_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += concat(i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ", ranks[i]);
  return text;
}

void check_signatures(const Signature* signatures, int size, const char* group) {
  bool equal = true;
  for (int rank = 1; rank < size && equal; ++rank) equal = same_call(signatures[0], signatures[rank]);
  if (equal) {
    // Rank 0 may have given no name while two others gave different ones.
    const Signature* named = std::find_if(signatures, signatures + size, [](const Signature& s) { return s.name[0] != 0; });
    if (named == signatures + size || named == signatures) return;
    for (const Signature* other = named + 1; other < signatures + size && equal; ++other) equal = same_call(*named, *other);
    if (equal) return;
  }
  const std::vector<Party> parties = parties_of(signatures, size);
  const Party& most = parties.back();
  const bool majority = parties.size() == 1 || parties[parties.size() - 2].ranks.size() < most.ranks.size();
  std::string text;
  for (const Party& party : parties) {
    const bool last = &party == &most;
    if (last) text += ", ";
    else if (!text.empty()) text += "; ";
    text += last && majority && parties.size() == 2 && size > 2 ? "the other ranks" : describe_ranks(party.ranks);
    if (!last) text += party.ranks.size() == 1 ? " calls" : " call";
    text += " " + describe(party.call);
  }
  const Party& odd = parties.front();
  const std::string who = majority ? describe_ranks(odd.ranks) : "one of them";
  fail(ErrorCode::kFailed, "the ranks of group ", group, " do not make the same call: ", text, "; ", advice(odd.call, most.call, who));
}

size_t sum_of(const std::vector<size_t>& counts) { return std::accumulate(counts.begin(), counts.end(), size_t{0}); }

bool is_uneven(const Call& call) { return call.op == Op::kAllToAll && !(call.send_counts.empty() && call.receive_counts.empty()); }

namespace {

/// Blocks of rank_bytes() in a rank's input and output of each operation.
enum class Blocks { kNone, kOne, kAll, kOneAtRoot, kAllAtRoot };
struct Shape {
  Blocks input, output;
};
constexpr Shape kShapes[] = {
    {Blocks::kOne, Blocks::kOne},        // All-reduce
    {Blocks::kOne, Blocks::kOneAtRoot},  // Reduce
    {Blocks::kAll, Blocks::kOne},        // Reduce-scatter
    {Blocks::kOne, Blocks::kAll},        // All-gather
    {Blocks::kOneAtRoot, Blocks::kOne},  // Broadcast
    {Blocks::kAll, Blocks::kAll},        // All-to-all
    {Blocks::kOne, Blocks::kAllAtRoot},  // Gather
    {Blocks::kAllAtRoot, Blocks::kOne},  // Scatter
    {Blocks::kNone, Blocks::kNone},      // Barrier
};

size_t block_bytes(Blocks blocks, const Call& call, int rank, int size) {
  if (blocks == Blocks::kNone || (blocks >= Blocks::kOneAtRoot && rank != call.root)) return 0;
  const bool all = blocks == Blocks::kAll || blocks == Blocks::kAllAtRoot;
  return rank_bytes(call) * static_cast<size_t>(all ? size : 1);
}

}  // namespace

size_t input_bytes(const Call& call, int rank, int size) {
  if (is_uneven(call)) return sum_of(call.send_counts) * c10::elementSize(call.type);
  return block_bytes(kShapes[static_cast<size_t>(call.op)].input, call, rank, size);
}

size_t output_bytes(const Call& call, int rank, int size) {
  if (is_uneven(call)) return sum_of(call.receive_counts) * c10::elementSize(call.type);
  return block_bytes(kShapes[static_cast<size_t>(call.op)].output, call, rank, size);
}

void check_call(const Call& call, int size) {
  if (call.root < 0 || call.root >= size)
    fail(ErrorCode::kBadInput, name_of(call.op), " of ", call.name, ": root ", call.root, " is not one of the ", size, " ranks");
  const auto fits = [&](const std::vector<size_t>& counts) { return counts.size() == static_cast<size_t>(size); };
  if (is_uneven(call) && !(fits(call.send_counts) && fits(call.receive_counts)))
    fail(ErrorCode::kBadInput, "all-to-all of ", call.name, ": ", call.send_counts.size(), " send and ", call.receive_counts.size(),
         " receive counts for ", size, " ranks");
}

void copy_bytes(void* to, const void* from, size_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

CallFrame make_frame(const Call& call, int rank, int size) {
  CallFrame frame;
  frame.signature = signature_of(call);
  if (is_uneven(call)) {
    frame.signature.count = kUnevenCount;  // Even where this rank's counts are equal; make_count_matrix() compares them.
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
  const size_t bytes = rank_bytes(call), most = one_has_all ? bytes * static_cast<size_t>(size) : bytes;
  if (is_uneven(call) || most > CallFrame::kPayloadBytes) return false;
  if (call.op == Op::kAllReduce || call.op == Op::kReduce || call.op == Op::kReduceScatter) check_reduction(call.reduction, call.type);
  std::byte* output = static_cast<std::byte*>(call.output);
  const size_t mine = bytes * static_cast<size_t>(rank);
  const auto reduce_at = [&](size_t offset) {
    // Payloads are aligned for every type.
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
      if (rank != call.root || output) copy_bytes(output, frames[call.root].payload, bytes);
      break;
    case Op::kScatter:
      copy_bytes(output, frames[call.root].payload + mine, bytes);
      break;
    case Op::kAllGather:
    case Op::kGather:
    case Op::kAllToAll:
      if (call.op == Op::kGather && rank != call.root) break;
      for (int peer = 0; peer < size; ++peer)
        copy_bytes(output + bytes * static_cast<size_t>(peer), frames[peer].payload + (call.op == Op::kAllToAll ? mine : 0), bytes);
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
