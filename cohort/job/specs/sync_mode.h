#pragma once
// How data-parallel workers wait for one another: the value `sync` of a layout. Torch-free.

#include <cstdint>
#include <iosfwd>
#include <string>

#include "cohort/base/export.h"

namespace cohort {

enum class SyncKind {
  kStep,    ///< All agree after every step.
  kAsync,   ///< Each pushes its gradient to a server when it has one, and takes the newest weights.
  kStale,   ///< The same, nobody more than `number` steps ahead of the slowest.
  kLocal,   ///< Weights are averaged every `number` steps.
  kDiloco,  ///< The same with an outer optimizer on the averaged change.
  kQueue,   ///< Trained models queue up; a free worker takes one and trains it on.
};

struct SyncMode {
  SyncKind kind = SyncKind::kStep;
  int64_t number = 0;  ///< K of stale, from 0; H of local and diloco, from 1.
  int fragments = 1;   ///< F of local:H:F and diloco:H:F, at most H: parts of the model that are exchanged in turn.
  int quorum = 0;      ///< Q of local:H:quorum=Q and diloco:H:quorum=Q: workers that an exchange waits for; 0: all ranks make it together.
  double grace_seconds = 0;  ///< Of a quorum: how long it then waits for the others.
  bool newest = false;       ///< queue:newest: the newest model is served, and not the one that waits longest.
  bool replaces = false;     ///< queue:replace: a finished model is taken as it is, and not merged into the newest.
  bool operator==(const SyncMode&) const = default;
};

/// step, async, stale:K, queue[:newest][:replace], and local and diloco as :H[:F] or :H:quorum=Q[:grace=SECONDS].
/// Error(kBadInput) for anything else.
COHORT_API SyncMode parse_sync(const std::string& text);
COHORT_API std::string to_text(const SyncMode& mode);
/// Writes that text.
COHORT_API std::ostream& operator<<(std::ostream& out, const SyncMode& mode);
/// All agree after every step.
inline bool is_step(const SyncMode& mode) { return mode.kind == SyncKind::kStep; }
/// async and stale: gradients are pushed to the server, and may come late.
inline bool has_late_gradients(const SyncMode& mode) { return mode.kind == SyncKind::kAsync || mode.kind == SyncKind::kStale; }
/// stale:0: pushes of a step are applied together, in the order of their shares.
inline bool is_in_order(const SyncMode& mode) { return mode.kind == SyncKind::kStale && mode.number == 0; }
/// Those, queue, and local and diloco with a quorum: workers talk to the one that serves, and to nobody else.
inline bool has_server(const SyncMode& mode) { return has_late_gradients(mode) || mode.kind == SyncKind::kQueue || mode.quorum > 0; }
/// local and diloco.
inline bool has_rounds(const SyncMode& mode) { return mode.kind == SyncKind::kLocal || mode.kind == SyncKind::kDiloco; }
/// local and diloco without a quorum: a worker trains by itself, and exchanges with all others after every step whose number (from 1) is a
/// multiple of H.
inline bool is_local(const SyncMode& mode) { return has_rounds(mode) && mode.quorum == 0; }
/// That H; 1 for all others.
inline int64_t steps_between_exchanges(const SyncMode& mode) { return is_local(mode) ? mode.number : 1; }
/// The H of local and diloco, with a quorum too; 1 for all others.
inline int64_t steps_of_round(const SyncMode& mode) { return has_rounds(mode) ? mode.number : 1; }

}  // namespace cohort
