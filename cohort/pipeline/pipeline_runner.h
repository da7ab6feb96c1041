#pragma once
// Executes a pipeline schedule: this rank's stages of a model, the values passed between stages, backward in one or two parts. Steps:
// pipeline_runner.cpp; background: docs/algorithms/pipeline.md.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/comm/group.h"
#include "cohort/pipeline/stage_cut.h"
#include "cohort/schedule/schedule.h"
#include "cohort/schedule/simulate.h"

namespace cohort {

class LayerGraph;

/// Callbacks of the model's first and last stage in one step, in the thread that calls step().
struct PipelineWork {
  /// The model's input of a micro-batch.
  std::function<at::Tensor(int micro_batch)> input;
  /// The scaled loss of the model's output, from which backward starts.
  std::function<at::Tensor(int micro_batch, const at::Tensor& output)> loss;
  /// Runs `forward` in the scopes of a micro-batch (step context, autocast); empty: runs it directly.
  std::function<void(int micro_batch, const std::function<void()>& forward)> around_forward;
};

struct PipelineStatistics {
  double waited_seconds = 0;  ///< Waiting for other stages in the last step.
  double compute_seconds = 0;
  int64_t sent_bytes = 0;  ///< In the last step.
  int most_kept = 0;       ///< Peak of (stage, micro-batch) pairs with kept activations.
};

/// One rank's part of a pipeline. One thread.
class COHORT_API PipelineRunner {
 public:
  /// Returns the schedule of a step of N micro-batches for the group's ranks.
  using ScheduleMaker = std::function<Schedule(int num_micro_batches)>;

  /// Collective over `group`. `graph` is the whole model and must outlive the runner: layers of other ranks' stages are dropped from it,
  /// and weights that belong to them are no longer among its parameters.
  PipelineRunner(LayerGraph& graph, StageCut cut, ScheduleMaker make_schedule, Group group);
  ~PipelineRunner();
  PipelineRunner(const PipelineRunner&) = delete;

  /// Runs one step's forwards and backwards; gradients accumulate in `.grad`. Collective. Errors name stage and micro-batch.
  void step(int num_micro_batches, const PipelineWork& work);
  /// Call once before consecutive evaluate() calls. Collective.
  void begin_evaluation();
  /// Forward of micro-batch `index` (0, 1, ..., which selects the replica). Returns the model's output on the ranks of the last stage, else
  /// undefined. Calls `input` where needed. Collective, without gradients.
  at::Tensor evaluate(int64_t index, const std::function<at::Tensor()>& input);

  const StageCut& cut() const;
  /// This rank's stages, ascending.
  const std::vector<int>& own_stages() const;
  bool has_first_stage() const;  ///< Whether it reads the model's input
  bool has_last_stage() const;   ///< or computes its output.
  /// Whether this rank runs a stage for a micro-batch of a step of N.
  bool runs(int stage, int micro_batch, int num_micro_batches);
  const Schedule& schedule(int num_micro_batches);
  const PipelineStatistics& statistics() const;
  /// Makes step() append this rank's timed actions, including transfers and waits, in seconds of the steady clock, which the ranks of a
  /// host share. Null: stop. `actions` must live until then.
  void record(std::vector<TimedAction>* actions);
  /// Fault injection for `verify`: changes the values of tied weights (by number) before this rank's stages borrow them; empty: none.
  void change_borrowed(std::function<at::Tensor(int64_t number, const at::Tensor& value)> change);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cohort
