#include "cohort/comm/transport/hang_report.h"

#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <thread>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/comm/transport/calls.h"

namespace cohort {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kCallsExchanged = 32;

std::string key_of(int rank) { return concat("cohort/failure/", rank); }

std::vector<uint8_t> encode(const FailureReport& report) {
  Json json;
  json["call"] = printable(report.call);
  json["text"] = printable(report.text);
  json["missing"] = report.missing;
  json["note"] = printable(report.note);
  json["calls"] = Json::array();
  for (const CallRecord& record : report.calls) json["calls"].push_back(to_json(record));
  const std::string text = json.dump();
  return {text.begin(), text.end()};
}

FailureReport decode(const std::vector<uint8_t>& bytes) {
  const Json json = Json::parse(bytes.begin(), bytes.end());
  FailureReport report{json.at("call").get<std::string>(),
                       json.at("text").get<std::string>(),
                       json.at("missing").get<std::vector<int>>(),
                       {},
                       json.at("note").get<std::string>()};
  for (const Json& record : json.at("calls")) report.calls.push_back(call_record_from_json(record));
  return report;
}

/// Collective calls by number.
std::map<uint64_t, Signature> by_sequence(const std::vector<CallRecord>& calls) {
  std::map<uint64_t, Signature> result;
  for (const CallRecord& record : calls)
    if (record.kind == CallRecord::Kind::kCollective) result[record.signature.sequence] = record.signature;
  return result;
}

using Rings = std::map<int, std::map<uint64_t, Signature>>;  // By rank.

/// The first number at which two ranks made different calls; 0: none.
uint64_t first_difference(const Rings& rings) {
  uint64_t first = 0;
  for (auto one = rings.begin(); one != rings.end(); ++one)
    for (auto other = std::next(one); other != rings.end(); ++other)
      for (const auto& [sequence, call] : one->second) {
        const auto found = other->second.find(sequence);
        if (found != other->second.end() && !same_call(call, found->second) && (first == 0 || sequence < first)) first = sequence;
      }
  return first;
}

/// The call that followed the predecessor of `sequence` when that was made last, which is what a loop would do now. Null when unknown.
const Signature* usual_successor(const std::map<uint64_t, Signature>& ring, uint64_t sequence, uint64_t steps) {
  const auto before = ring.find(sequence - 1);
  if (before == ring.end()) return nullptr;
  for (auto at = before; at != ring.begin();) {
    --at;
    if (!same_call(at->second, before->second, false)) continue;
    const auto next = ring.find(at->first + steps);
    return next != ring.end() && next->first < sequence ? &next->second : nullptr;
  }
  return nullptr;
}

const Signature* call_at(const std::map<uint64_t, Signature>& ring, uint64_t sequence) {
  const auto found = ring.find(sequence);
  return found == ring.end() ? nullptr : &found->second;
}

/// How rank `odd` deviated: from calls already started after it, else from what followed the previous call when it was made last.
std::string describe_slip(const std::map<uint64_t, Signature>& odd, const std::map<uint64_t, Signature>& usual, uint64_t sequence) {
  const Signature &mine = odd.at(sequence), &theirs = usual.at(sequence);
  if (mine.op == theirs.op && (mine.name[0] ? theirs.name[0] != 0 && std::string(mine.name) == theirs.name : mine.count == theirs.count)) {
    if (mine.type != theirs.type) return "uses another data type";
    if (mine.count != theirs.count) return "has another shape";
  }
  const auto left_out = [&] { return concat("left out the ", describe(theirs)); };
  const auto extra = [&] { return concat("made a call more, the ", describe(mine)); };
  if (const Signature* next = call_at(usual, sequence + 1); next && same_call(*next, mine, false)) return left_out();
  if (const Signature* next = call_at(odd, sequence + 1); next && same_call(*next, theirs, false)) return extra();
  const Signature *expected = usual_successor(usual, sequence, 1), *after = usual_successor(usual, sequence, 2);
  if (expected && same_call(*expected, theirs, false)) {
    if (after && same_call(*after, mine, false)) return left_out();
    if (const Signature* before = call_at(usual, sequence - 1); before && same_call(*before, mine, false)) return extra();
  }
  return "";
}

/// The last of `calls`, without its duration, which differs between ranks.
std::string last_call(const std::vector<CallRecord>& calls) {
  if (calls.empty()) return "none";
  const CallRecord& record = calls.back();
  const std::string text = describe(record);
  return (record.kind == CallRecord::Kind::kCollective ? describe(record.signature) : text.substr(0, text.find("),") + 1)) +
         (record.state == CallRecord::State::kDone ? " (done)" : "");
}

/// "last calls: ranks 0 and 1 all-reduce #7 ..., rank 2 unknown".
std::string last_calls(const FailureEvidence& evidence) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (size_t rank = 0; rank < evidence.reports.size(); ++rank) {
    const auto& report = evidence.reports[rank];
    const std::string call = report ? last_call(report->calls) : "unknown";
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const auto& group) { return group.first == call; });
    if (same == groups.end()) groups.push_back({call, {static_cast<int>(rank)}});
    else same->second.push_back(static_cast<int>(rank));
  }
  std::vector<std::string> parts;
  for (const auto& [call, ranks] : groups) parts.push_back(concat(describe_ranks(ranks), " ", call));
  return "last calls: " + join(parts, ", ");
}

}  // namespace

std::vector<int> ranks_named_in(const std::string& text, int rank, int size) {
  std::vector<int> ranks;
  for (size_t at = text.find("rank "); at != std::string::npos; at = text.find("rank ", at + 1)) {
    const size_t begin = at + 5, end = text.find_first_not_of("0123456789", begin);
    const auto number = parse_integer(std::string_view(text).substr(begin, end == std::string::npos ? end : end - begin));
    if (number && *number >= 0 && *number < size && *number != rank && std::find(ranks.begin(), ranks.end(), *number) == ranks.end())
      ranks.push_back(static_cast<int>(*number));
  }
  return ranks;
}

std::string explain_divergence(const std::vector<std::optional<FailureReport>>& reports) {
  Rings rings;
  for (size_t rank = 0; rank < reports.size(); ++rank)
    if (reports[rank]) rings[static_cast<int>(rank)] = by_sequence(reports[rank]->calls);
  const uint64_t sequence = first_difference(rings);
  if (sequence == 0) return "";
  // Groups ranks by their call at that number; the largest group is taken to be right, in a tie the one that repeats its loop.
  std::vector<std::vector<int>> parties;
  for (const auto& [rank, ring] : rings) {
    const Signature* mine = call_at(ring, sequence);
    if (!mine) continue;
    const auto party = std::find_if(parties.begin(), parties.end(),
                                    [&](const auto& ranks) { return same_call(*call_at(rings[ranks.front()], sequence), *mine); });
    if (party == parties.end()) parties.push_back({rank});
    else party->push_back(rank);
  }
  const auto as_before = [&](const std::vector<int>& party) {
    const auto& ring = rings[party.front()];
    const Signature* expected = usual_successor(ring, sequence, 1);
    return expected && same_call(*expected, ring.at(sequence), false);
  };
  std::stable_sort(parties.begin(), parties.end(), [&](const auto& a, const auto& b) {
    return a.size() != b.size() ? a.size() > b.size() : as_before(a) && !as_before(b);
  });
  const bool clear = parties[0].size() > parties[1].size() || (as_before(parties[0]) && !as_before(parties[1]));
  const auto& usual = rings[parties[0].front()];
  std::vector<std::string> parts;
  for (size_t i = 1; i < parties.size(); ++i) {
    const std::string slip = clear ? describe_slip(rings[parties[i].front()], usual, sequence) : "";
    parts.push_back(concat(describe_ranks(parties[i]),
                           slip.empty() ? concat(" made the ", describe(rings[parties[i].front()].at(sequence))) : " " + slip));
  }
  return concat("the calls differ from #", sequence, " on: ", join(parts, ", "), ", where ", describe_ranks(parties[0]), " made the ",
                describe(usual.at(sequence)));
}

namespace {

/// Whether any report names `peer` as missing.
bool was_missed(const FailureEvidence& evidence, int peer) {
  for (const auto& report : evidence.reports)
    if (report && std::count(report->missing.begin(), report->missing.end(), peer)) return true;
  return false;
}

/// Ranks that neither ended nor reported. Those named as missing by a transport take precedence, since others may only be later.
std::vector<int> silent_ranks(const FailureEvidence& evidence) {
  std::vector<int> silent, missed;
  for (int peer = 0; peer < static_cast<int>(evidence.reports.size()); ++peer) {
    if (evidence.reports[peer] || !evidence.states[peer].empty()) continue;
    silent.push_back(peer);
    if (was_missed(evidence, peer)) missed.push_back(peer);
  }
  return missed.empty() ? silent : missed;
}

/// Messages with `peer` and `tag`, oldest first.
std::vector<CallRecord> messages_with(const std::vector<CallRecord>& calls, CallRecord::Kind kind, int peer, int tag) {
  std::vector<CallRecord> result;
  for (const CallRecord& record : calls)
    if (record.kind == kind && record.signature.root == peer && record.tag == tag) result.push_back(record);
  return result;
}

/// The other end of a message in its peer's records: messages of one pair and tag match in order. None where records may have been dropped.
std::optional<CallRecord> counterpart(const CallRecord& message, int rank, const FailureReport& mine, const FailureReport& theirs) {
  const bool sends = message.kind == CallRecord::Kind::kSend;
  const auto here = messages_with(mine.calls, message.kind, message.signature.root, message.tag);
  const auto there = messages_with(theirs.calls, sends ? CallRecord::Kind::kReceive : CallRecord::Kind::kSend, rank, message.tag);
  if (mine.calls.size() >= kCallsExchanged || theirs.calls.size() >= kCallsExchanged) return std::nullopt;
  const size_t num_done = static_cast<size_t>(
      std::count_if(here.begin(), here.end(), [](const CallRecord& record) { return record.state == CallRecord::State::kDone; }));
  return num_done < there.size() ? std::optional(there[num_done]) : std::nullopt;
}

/// What the peer of the failed message did, or "".
std::string judge_message(const FailureEvidence& evidence) {
  const CallRecord& message = *evidence.message;
  const int peer = message.signature.root;
  if (peer < 0) return "";
  const bool sends = message.kind == CallRecord::Kind::kSend;
  const auto &mine = evidence.reports[evidence.rank], &theirs = evidence.reports[peer];
  const std::string& name = evidence.names[peer];
  if (mine && theirs) {
    const auto other = counterpart(message, evidence.rank, *mine, *theirs);
    if (!other) return "";
    if (other->signature.count == message.signature.count) return "";
    return concat(name, sends ? " awaits " : " sent ", other->signature.count, " bytes with tag ", message.tag, " where rank ",
                  evidence.rank, sends ? " sends " : " awaits ", message.signature.count,
                  ": give both ends tensors of the same size and type");
  }
  if (theirs) return "";
  const std::string bytes = concat(message.signature.count, " bytes with tag ", message.tag);
  if (evidence.states[peer] == "has ended")
    return concat(name, " has ended without having ", sends ? "taken" : "sent", " a message of ", bytes);
  if (!evidence.states[peer].empty()) return concat(name, " ", evidence.states[peer]);
  return concat(
      name, " has not come to its end of the ", evidence.call, sends ? ", the receive of " : ", the send of ", bytes,
      ": it is slow, hangs in code of its own, has left the message out or uses another size or tag, or is on a host that cannot be "
      "reached");
}

}  // namespace

std::string judge(const FailureEvidence& evidence) {
  const int size = static_cast<int>(evidence.reports.size());
  std::vector<std::string> parts;
  const int partner = evidence.message ? evidence.message->signature.root : -1;
  if (evidence.message)
    if (const std::string verdict = judge_message(evidence); !verdict.empty()) parts.push_back(verdict);
  // Root causes: a rank that has ended or is stopped without a report of its own.
  for (int peer = 0; peer < size; ++peer)
    if (peer != partner && !evidence.states[peer].empty() && !evidence.reports[peer])
      parts.push_back(evidence.names[peer] + " " + evidence.states[peer]);
  for (int peer = 0; peer < size; ++peer) {
    const auto& report = evidence.reports[peer];
    if (!report || peer == evidence.rank || !std::count(report->missing.begin(), report->missing.end(), evidence.rank)) continue;
    if (report->text.find("closed its connection") != std::string::npos) continue;  // Closed by this rank after its own failure.
    parts.push_back(
        concat(evidence.names[peer], " had given up its ", report->call, " waiting for rank ", evidence.rank, ", which came too late"));
  }
  if (const std::string divergence = explain_divergence(evidence.reports); !divergence.empty()) parts.push_back(divergence);
  for (int peer = 0; peer < size; ++peer)
    if (const auto& report = evidence.reports[peer]; report && !report->note.empty())
      parts.push_back(evidence.names[peer] + " " + report->note);
  if (parts.empty())
    for (const int peer : silent_ranks(evidence))
      parts.push_back(concat(evidence.names[peer], " has not come to the ", evidence.call,
                             ": it is slow, hangs in code of its own, has left the call out, or is on a host that cannot be reached"));
  // Then consequences of causes that nobody has seen.
  for (int peer = 0; parts.empty() && peer < size; ++peer)
    if (const auto& report = evidence.reports[peer]; report && evidence.states[peer] == "has ended")
      parts.push_back(concat(evidence.names[peer], " has ended after its ", report->call, " failed: ", report->text));
  if (parts.empty() && !evidence.mismatch)
    parts.push_back("all ranks are in the same call: the connection between them is slower than the time-out, or blocked");
  parts.push_back(last_calls(evidence));
  return join(parts, "; ");
}

namespace {

/// State of the exchange of reports, in a thread that is abandoned when the store hangs.
struct Exchange {
  c10::intrusive_ptr<c10d::Store> store;
  Peers peers;
  int rank, size;
  bool everyone_fails;
  int partner;  // Of the failed message, else -1.
  double patience;
  FailureReport mine;
  FailureEvidence evidence;

  void look_at_peers() {
    for (int peer = 0; peer < peers.size(); ++peer) evidence.states[peer] = peers.state_of(peer, rank);
  }

  bool collect() {
    bool complete = true;
    look_at_peers();
    for (int peer = 0; peer < size; ++peer) {
      auto& report = evidence.reports[peer];
      if (!report && store->check({key_of(peer)})) report = decode(store->get(key_of(peer)));
      complete = complete && (report || !evidence.states[peer].empty());
    }
    return complete;
  }

  void run() {
    const auto deadline = Clock::now() + std::chrono::duration<double>(patience);
    store->set(key_of(rank), encode(mine));
    for (;;) {
      const bool complete = collect();
      // A rank that died without a report explains everything, unless all ranks see the failure or the message is between others.
      bool dead = false;
      for (int peer = 0; peer < size; ++peer)
        dead = dead || ((partner < 0 || peer == partner) && evidence.states[peer] == "has ended" && !evidence.reports[peer]);
      if (complete || (dead && !everyone_fails) || Clock::now() > deadline) return;
      std::this_thread::sleep_for(std::chrono::microseconds(300));
    }
  }
};

/// Runs `work`, which does not throw, in a thread and waits at most `seconds` for it; a thread that hangs in the store is left behind.
/// Whether it has ended.
bool run_within(double seconds, std::function<void()> work) {
  std::packaged_task<void()> task(std::move(work));
  const std::future<void> done = task.get_future();
  std::thread thread(std::move(task));
  const bool has_ended = done.wait_for(std::chrono::duration<double>(seconds)) == std::future_status::ready;
  if (has_ended) thread.join();
  else thread.detach();
  return has_ended;
}

}  // namespace

std::string HangReporter::explain(const Recorder& recorder, const std::string& call, const std::string& text, bool everyone_fails,
                                  const CallRecord* message) const {
  FailureReport mine{call, text, everyone_fails ? std::vector<int>{} : ranks_named_in(text, rank_, size_), recorder.last(kCallsExchanged),
                     note_ ? note_->get() : ""};
  FailureEvidence alone{.rank = rank_, .mismatch = everyone_fails, .call = call, .reports = {}, .states = {}, .names = {}, .message = {}};
  if (message) alone.message = *message;
  alone.reports.resize(static_cast<size_t>(size_));
  alone.reports[static_cast<size_t>(rank_)] = mine;
  alone.states.resize(static_cast<size_t>(size_));
  for (int peer = 0; peer < size_; ++peer) alone.names.push_back(peers_.name_of(peer));
  const auto exchange = std::make_shared<Exchange>(
      Exchange{store_, peers_, rank_, size_, everyone_fails, message ? message->signature.root : -1, patience_, std::move(mine), alone});
  const auto collect = [exchange] {
    try {
      exchange->run();
    } catch (...) {
      exchange->look_at_peers();  // The store is gone, usually with rank 0: judge from what is visible here.
    }
  };
  if (store_ && run_within(patience_ + 1, collect)) return judge(exchange->evidence);
  for (int peer = 0; peer < size_ && peers_.size() > 0; ++peer) alone.states[peer] = peers_.state_of(peer, rank_);
  return judge(alone);
}

std::string HangReporter::leave(const Recorder& recorder, const std::string& call, const std::string& text) const {
  const std::vector<CallRecord> calls = recorder.last(kCallsExchanged);
  const auto leave_record = [store = store_, key = key_of(rank_), record = encode({call, text, {}, calls})] {
    try {
      store->set(key, record);
    } catch (...) {
    }
  };
  if (store_) run_within(patience_, leave_record);
  return "last call: " + last_call(calls);
}

}  // namespace cohort
