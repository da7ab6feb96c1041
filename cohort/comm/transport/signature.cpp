#include "cohort/comm/transport/signature.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string_view>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {

const char* name_of(Op op) {
  switch (op) {
    case Op::kAllReduce:
      return "all-reduce";
    case Op::kReduce:
      return "reduce";
    case Op::kReduceScatter:
      return "reduce-scatter";
    case Op::kAllGather:
      return "all-gather";
    case Op::kBroadcast:
      return "broadcast";
    case Op::kAllToAll:
      return "all-to-all";
    case Op::kGather:
      return "gather";
    case Op::kScatter:
      return "scatter";
    case Op::kBarrier:
      return "barrier";
  }
  return "unknown operation";
}

const char* name_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
      return "sum";
    case Reduction::kAverage:
      return "average";
    case Reduction::kProduct:
      return "product";
    case Reduction::kMin:
      return "minimum";
    case Reduction::kMax:
      return "maximum";
    case Reduction::kBitAnd:
      return "bitwise and";
    case Reduction::kBitOr:
      return "bitwise or";
    case Reduction::kBitXor:
      return "bitwise xor";
  }
  return "unknown reduction";
}

namespace {

bool reduces(Op op) { return op == Op::kAllReduce || op == Op::kReduce || op == Op::kReduceScatter; }
bool has_root(Op op) { return op == Op::kReduce || op == Op::kBroadcast || op == Op::kGather || op == Op::kScatter; }

/// Ranks that make one call.
struct Party {
  Signature call;
  std::vector<int> ranks;
};

/// Ranks by the call they make, the largest party last. A rank that gave no name belongs to the first party that it fits.
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

/// What to look for, from what differs between two calls.
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
  // Read by a thread whose wait has timed out, too, while the lane's own thread may be numbering the call.
  signature.sequence = std::atomic_ref(const_cast<uint64_t&>(call.sequence)).load(std::memory_order_relaxed);
  // What an operation does not use must not make two calls differ.
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

}  // namespace cohort
