#pragma once
// A pipeline schedule: for each rank, what it does in one training step and in which order. Data, not code: generators write it,
// check_schedule() proves it, simulate() times it, the pipeline runtime executes it. Torch-free.
//
// A model is cut into stages 0, 1, ... that are numbered so that values flow from lower to higher numbers; a batch is cut into
// micro-batches. `edges` says which stage hands values to which: a chain unless the model has skip connections or parallel branches. A rank
// may run several stages (chunks), and several ranks may share the micro-batches of one stage (replicas of a slow one).

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/base/text/json_fwd.h"

namespace cohort {

enum class ActionKind : uint8_t {
  kForward,
  kBackward,        ///< Both parts at once.
  kBackwardInput,   ///< Gradients of the stage's inputs,
  kBackwardWeight,  ///< and later of its weights.
  kSendForward,     ///< Activations of `stage` to stage `peer`; does not wait for the receiver.
  kReceiveForward,  ///< Activations that `stage` gets from stage `peer`; waits until they are there.
  kSendBackward,    ///< Gradients that `stage` hands back to stage `peer`.
  kReceiveBackward,
};

struct Action {
  ActionKind kind = ActionKind::kForward;
  int stage = 0;
  int micro_batch = 0;
  int peer = -1;  ///< The other stage; transfers only.
  bool operator==(const Action&) const = default;
};

COHORT_API bool is_transfer(ActionKind kind);
/// The notation of files and errors: F2.5, B2.5, I2.5 (input part), W2.5 (weight part) of stage 2 and micro-batch 5; SF2.5>3 and RB2.5<3
/// are stage 2 sending its output to stage 3 and receiving its gradient; RF3.5<2 and SB3.5>2 are the same at stage 3.
COHORT_API std::string action_text(const Action& action);

struct Schedule {
  std::string name;
  int num_stages = 0;
  int num_micro_batches = 0;
  std::vector<std::pair<int, int>> edges;    ///< (from, to), from < to, sorted, distinct.
  std::vector<std::vector<Action>> actions;  ///< One list per rank.

  int num_ranks() const { return static_cast<int>(actions.size()); }
};

/// (0, 1), (1, 2), ...
COHORT_API std::vector<std::pair<int, int>> chain_edges(int num_stages);
COHORT_API bool has_transfers(const Schedule& schedule);

struct StageCosts;  // simulate.h

/// Input of a generator. Limits of all schedules: 4,096 ranks, stages and micro-batches, 16 M (stage, micro-batch) pairs.
struct PipelineShape {
  int num_ranks = 1;
  int num_micro_batches = 1;
  int chunks = 1;                          ///< Stages per rank (interleaved, bfs); zb-v always has 2.
  std::vector<std::pair<int, int>> edges;  ///< Between stages; empty: a chain. Generators of chains keep them for the transfers.
  const StageCosts* costs = nullptr;       ///< What stages cost, where known: zb-h1 and zb-v take the best order they find for it, within
                                           ///< the same memory. Null: all parts of all stages equal. Read during the call only.
};

/// Generates "gpipe", "1f1b", "interleaved:V", "bfs:V", "zb-h1" or "zb-v" without transfers. `shape.chunks` is taken from the name. Error
/// (kBadInput) with the nearest known name, or where the shape does not allow the schedule.
COHORT_API Schedule make_schedule(const std::string& name, const PipelineShape& shape);
/// The names, for help.
COHORT_API const std::vector<std::string>& schedule_names();
/// Stages that schedule `name` has on `num_ranks` ranks.
COHORT_API int num_stages_of(const std::string& name, int num_ranks);

/// A schedule for any graph of stages on any ranks, used for parallel branches, replicated stages and layout files: `rank_of[stage]` lists
/// the ranks that share the stage's micro-batches (k goes to entry k mod size). Algorithm: branch.cpp. Without `edges` stages exchange
/// nothing. `costs` null: all parts of all stages equal.
COHORT_API Schedule make_graph_schedule(const std::vector<std::pair<int, int>>& edges, const std::vector<std::vector<int>>& ranks_of_stage,
                                        int num_micro_batches, bool split_backward = false, const StageCosts* costs = nullptr);

/// The rank of each (stage, micro-batch): [stage][micro_batch]. Error(kBadInput) where there is none or two.
COHORT_API std::vector<std::vector<int>> ranks_of_stages(const Schedule& schedule);

/// Inserts sends right after and receives right before the actions that produce and need the values, for every edge between two ranks.
/// Messages between two ranks are received in the order in which they are sent: a receive moves up to where a later message is needed,
/// which waits no longer. Without effect where the schedule has transfers. Error(kBadInput) for missing or repeated actions.
COHORT_API void add_transfers(Schedule& schedule);

/// {"name", "stages", "micro_batches", "edges", "ranks": [["F0.0", "B0.0", ...]]}; see docs/formats/schedule.md. Transfers are optional in
/// the file.
COHORT_API Json to_json(const Schedule& schedule);
/// Error(kBadInput) with the location. Limits: 4,096 ranks, stages and micro-batches, 16 M actions.
COHORT_API Schedule schedule_from_json(const Json& json);
COHORT_API Schedule read_schedule_file(const std::string& path);

}  // namespace cohort
