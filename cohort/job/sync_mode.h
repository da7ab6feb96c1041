#pragma once
// How data-parallel workers wait for one another: the value `sync` of a layout. Torch-free.

#include <cstdint>
#include <string>

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
  int64_t number = 0;     ///< K of stale, from 0; H of local and diloco, from 1.
  bool newest = false;    ///< queue:newest: the newest model is served, and not the one that waits longest.
  bool replaces = false;  ///< queue:replace: a finished model is taken as it is, and not merged into the newest.
  bool operator==(const SyncMode&) const = default;
};

/// step, async, stale:K, local:H, diloco:H, queue[:newest][:replace]. Error(kBadInput) for anything else.
SyncMode parse_sync(const std::string& text);
std::string to_text(const SyncMode& mode);
/// async and stale: gradients may come late.
bool has_late_gradients(const SyncMode& mode);
/// Those and queue: workers talk to the one that serves, and to nobody else.
bool has_server(const SyncMode& mode);
/// local and diloco: a worker trains by itself, and exchanges after every step whose number (from 1) is a multiple of H.
bool is_local(const SyncMode& mode);
/// That H; 1 for all others.
int64_t steps_between_exchanges(const SyncMode& mode);

}  // namespace cohort
