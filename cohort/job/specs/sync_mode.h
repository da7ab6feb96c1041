#pragma once
// Synchronization of data-parallel workers: the value `sync` of a layout. Torch-free.

#include <cstdint>
#include <iosfwd>
#include <string>

#include "cohort/base/export.h"

namespace cohort {

enum class SyncKind {
  kStep,    ///< Synchronous after every step.
  kAsync,   ///< Each worker pushes gradients to a parameter server and pulls the newest weights.
  kStale,   ///< As kAsync, at most `number` steps ahead of the slowest.
  kLocal,   ///< Weights are averaged every `number` steps.
  kDiloco,  ///< As kLocal, with an outer optimizer on the averaged change.
  kQueue,   ///< Models wait in a queue; a free worker takes one and trains it further.
};

struct SyncMode {
  SyncKind kind = SyncKind::kStep;
  int64_t number = 0;        ///< K of stale, from 0; H of local and diloco, from 1.
  int fragments = 1;         ///< F of local:H:F and diloco:H:F, at most H: parts of the model exchanged at different steps.
  int quorum = 0;            ///< Q of quorum=Q: workers that an exchange waits for; 0: a collective of all ranks.
  double grace_seconds = 0;  ///< How long a quorum then waits for the other workers.
  bool newest = false;       ///< queue:newest: the newest model is taken, not the oldest.
  bool replaces = false;     ///< queue:replace: a finished model replaces the newest, instead of being merged into it.
  bool operator==(const SyncMode&) const = default;
};

/// step, async, stale:K, queue[:newest][:replace], and local and diloco as :H[:F] or :H:quorum=Q[:grace=SECONDS].
/// Error(kBadInput) otherwise.
COHORT_API SyncMode parse_sync(const std::string& text);
COHORT_API std::string to_text(const SyncMode& mode);
/// Writes to_text(mode).
COHORT_API std::ostream& operator<<(std::ostream& out, const SyncMode& mode);
/// Synchronous after every step.
inline bool is_step(const SyncMode& mode) { return mode.kind == SyncKind::kStep; }
/// async and stale: gradients are pushed to the server, and may come late.
inline bool has_late_gradients(const SyncMode& mode) { return mode.kind == SyncKind::kAsync || mode.kind == SyncKind::kStale; }
/// stale:0: pushes of a step are applied together, in the order of their shares.
inline bool is_in_order(const SyncMode& mode) { return mode.kind == SyncKind::kStale && mode.number == 0; }
/// async, stale, queue, and local and diloco with a quorum: workers exchange with a parameter server only.
inline bool has_server(const SyncMode& mode) { return has_late_gradients(mode) || mode.kind == SyncKind::kQueue || mode.quorum > 0; }
/// local and diloco.
inline bool has_rounds(const SyncMode& mode) { return mode.kind == SyncKind::kLocal || mode.kind == SyncKind::kDiloco; }
/// local and diloco without a quorum: workers train independently, and average after every H steps.
inline bool is_local(const SyncMode& mode) { return has_rounds(mode) && mode.quorum == 0; }
/// The H of is_local() modes; 1 for all others.
inline int64_t steps_between_exchanges(const SyncMode& mode) { return is_local(mode) ? mode.number : 1; }
/// The H of has_rounds() modes; 1 for all others.
inline int64_t steps_per_round(const SyncMode& mode) { return has_rounds(mode) ? mode.number : 1; }

}  // namespace cohort
