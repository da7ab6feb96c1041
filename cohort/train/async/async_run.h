#pragma once
// What trainings have in common whose workers do not wait, whoever drives them: their tickets, their mode, and what they save beside the
// model.

#include <cstdint>
#include <memory>
#include <string>

#include "cohort/base/text/json_fwd.h"
#include "cohort/data/tickets.h"
#include "cohort/job/sync_mode.h"
#include "cohort/parallel/flat_piece.h"
#include "cohort/train/async/async_mode.h"
#include "cohort/train/run/run_setup.h"

namespace cohort {

/// Steps are cut into a share a worker. `workers_setting` names what said how many: "--workers ". Error(kBadInput) where one of them would
/// have no samples.
TicketOptions ticket_options(const Config& config, const DataSource& samples, const LayerGraph& model, int64_t total_steps, int num_workers,
                             const std::string& workers_setting);

/// The queue's alone.
struct QueueServing {
  bool newest = false, replaces = false;
};
/// Of `model`, which must outlive it.
std::unique_ptr<AsyncMode> make_async_mode(const torch::nn::Module& model, const RunSetup& run, int num_workers, const QueueServing& queue);

/// JSON as a tensor of a checkpoint.
FlatPiece async_state_piece(const Json& state);

/// What the newest checkpoint of `run` holds of that.
struct FoundAsyncState {
  std::string text;  ///< "" where the checkpoint has none, or one with another "key": that is said then.
  std::string where;
  int64_t step = 0;
};
FoundAsyncState find_async_state(const std::string& run, const std::string& key);

}  // namespace cohort
