#pragma once
// Why an exchange failed: ranks put their rings (recorder.h) into the store, compare them, and one sentence names the guilty rank and
// operation.
//
// Steps: 1. a rank whose exchange fails writes {what failed, its last calls}; 2. it reads what the others have written until all have or
// kPatienceSeconds (or the time-out) are over; a rank that is dead is not waited for; 3. it judges: who is dead, stopped or did not come;
// where the rings first differ, and whether that rank left a call out, made one twice, or called with another shape or type. Of a message
// its peer is judged first, and what that rank sent or awaited itself; others may have ended because they had nothing more to do.
//
// Cost: one record of some kilobytes a rank, written once, when a group has failed for good.

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

/// What a rank leaves behind when its exchange fails.
struct FailureReport {
  std::string call;               ///< What failed.
  std::string text;               ///< What the transport said.
  std::vector<int> missing;       ///< Ranks that it waited for.
  std::vector<CallRecord> calls;  ///< Its last ones, oldest first.
  std::string note{};             ///< See FailureNote.
};

/// What a rank wants all to read, should an exchange fail: "changed its model: ...". Any thread.
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

/// What one rank knows when it judges.
struct FailureEvidence {
  int rank = 0;
  bool mismatch = false;                              ///< The transport has seen that the calls differ.
  std::string call;                                   ///< What failed here.
  std::vector<std::optional<FailureReport>> reports;  ///< Of each rank, its own too; none: it has not failed, or could not say so.
  std::vector<std::string> states;                    ///< "has ended", "is stopped" or "" of each rank.
  std::vector<std::string> names;                     ///< "rank 1 (pid 77)".
  std::optional<CallRecord> message;                  ///< What failed, where it is one: its kind, peer, bytes and tag.
};

/// The sentence: "rank 1 (pid 77) has ended; last calls: ...".
std::string judge(const FailureEvidence& evidence);
/// Where the collective calls of the ranks first differ and what that means, or "".
std::string explain_divergence(const std::vector<std::optional<FailureReport>>& reports);
/// Ranks named in a transport's text ("rank 2 did not come"), but not `rank` itself.
std::vector<int> ranks_named_in(const std::string& text, int rank, int size);

class HangReporter {
 public:
  static constexpr double kPatienceSeconds = 2.0;

  /// `store`: a prefix of the group's own; may be null (nothing is exchanged then).
  /// `patience_seconds`: how long others are waited for, at most kPatienceSeconds.
  /// `note`: may be null.
  HangReporter(c10::intrusive_ptr<c10d::Store> store, Peers peers, int rank, int size, double patience_seconds = kPatienceSeconds,
               std::shared_ptr<const FailureNote> note = nullptr)
      : store_(std::move(store)),
        peers_(std::move(peers)),
        rank_(rank),
        size_(size),
        patience_(std::min(patience_seconds, kPatienceSeconds)),
        note_(std::move(note)) {}

  /// The verdict on the failure of `call` ("all-reduce #7 of conv1.weight (100 Float, sum)"), of which the transport said `text`.
  /// `everyone_fails`: a mismatch, which all ranks see. Ends within kPatienceSeconds and a second more, whatever the store does.
  /// `message`: see FailureEvidence.
  std::string explain(const Recorder& recorder, const std::string& call, const std::string& text, bool everyone_fails,
                      const CallRecord* message = nullptr) const;
  /// Leaves this rank's record for the others without waiting for theirs; "last call: ...". For a failure that explains itself.
  std::string leave(const Recorder& recorder, const std::string& call, const std::string& text) const;

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  Peers peers_;
  int rank_, size_;
  double patience_;
  std::shared_ptr<const FailureNote> note_;
};

}  // namespace cohort
