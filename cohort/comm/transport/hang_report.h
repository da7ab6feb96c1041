#pragma once
// Explains a failed exchange: ranks publish their recent calls (recorder.h) in the store, compare them, and one sentence names the guilty
// rank and operation.
//
// Steps: 1. a failing rank writes what failed and its last calls; 2. it reads the others' reports for kPatienceSeconds (or the time-out) at
// most, without waiting for dead ranks; 3. it judges: who is dead, stopped or late; where the calls first differ, and whether that rank
// omitted or repeated a call or used another shape or type. For a message its peer is judged first, since other ranks may have ended
// because they were done.
//
// Cost: one record of some kilobytes per rank, once, when a group has failed for good.

#include <nlohmann/json_fwd.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/transport/peers.h"
#include "cohort/comm/transport/recorder.h"

namespace cohort {

/// What a rank publishes when its exchange fails.
struct FailureReport {
  std::string call;               ///< What failed.
  std::string text;               ///< The transport's text.
  std::vector<int> missing;       ///< Ranks that it waited for.
  std::vector<CallRecord> calls;  ///< Its last calls, oldest first.
  std::string note{};             ///< See FailureNote.
};

/// Text that a rank adds to failures, such as "changed its model: ...". Any thread.
class FailureNote {
 public:
  void set(const std::string& text) {
    const std::lock_guard lock(mutex_);
    text_ = text;
  }
  std::string get() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

/// The evidence on which one rank judges.
struct FailureEvidence {
  int rank = 0;
  bool mismatch = false;                              ///< The transport has found that the calls differ.
  std::string call;                                   ///< What failed here.
  std::vector<std::optional<FailureReport>> reports;  ///< Of every rank; none: it has not failed, or could not report it.
  std::vector<std::string> states;                    ///< "has ended", "is stopped" or "" per rank.
  std::vector<std::string> names;                     ///< "rank 1 (pid 77)".
  std::optional<CallRecord> message;                  ///< Kind, peer, bytes and tag of a failed message.
};

/// The verdict: "rank 1 (pid 77) has ended; last calls: ...".
std::string judge(const FailureEvidence& evidence);
/// Where the ranks' collective calls first differ and what that means, or "".
std::string explain_divergence(const std::vector<std::optional<FailureReport>>& reports);
/// Ranks other than `rank` named in a text ("rank 2 did not come").
std::vector<int> ranks_named_in(const std::string& text, int rank, int size);

class HangReporter {
 public:
  static constexpr double kPatienceSeconds = 2.0;

  /// `store`: a prefix of the group's own; null: nothing is exchanged. `patience_seconds`: how long others are waited for, at most
  /// kPatienceSeconds. `note` may be null.
  HangReporter(c10::intrusive_ptr<c10d::Store> store, Peers peers, int rank, int size, double patience_seconds = kPatienceSeconds,
               std::shared_ptr<const FailureNote> note = nullptr)
      : store_(std::move(store)),
        peers_(std::move(peers)),
        rank_(rank),
        size_(size),
        patience_(std::min(patience_seconds, kPatienceSeconds)),
        note_(std::move(note)) {}

  /// The verdict on the failure of `call` ("all-reduce #7 of conv1.weight (100 Float, sum)"), for which the transport reported `text`.
  /// `everyone_fails`: a mismatch, seen by all ranks. Returns within kPatienceSeconds and a second, whatever the store does. `message`: see
  /// FailureEvidence.
  std::string explain(const Recorder& recorder, const std::string& call, const std::string& text, bool everyone_fails,
                      const CallRecord* message = nullptr) const;
  /// Publishes this rank's record without waiting for others, for a failure that explains itself. Returns "last call: ...".
  std::string leave(const Recorder& recorder, const std::string& call, const std::string& text) const;

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  Peers peers_;
  int rank_, size_;
  double patience_;
  std::shared_ptr<const FailureNote> note_;
};

}  // namespace cohort
