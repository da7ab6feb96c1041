#pragma once
// Executes a pipeline schedule: this rank's stages of a model, the values that pass between stages, backward in one or two parts.
//
// See pipeline_runner.cpp for the steps, docs/algorithms/pipeline.md for the story.

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

/// What the model's two ends need in one step. Called on the ranks that run those ends, from the thread that calls step().
struct PipelineWork {
  /// The model's input of a micro-batch.
  std::function<at::Tensor(int micro_batch)> input;
  /// What backward starts from: the loss, scaled as it is to be. Gets the model's output.
  std::function<at::Tensor(int micro_batch, const at::Tensor& output)> loss;
  /// Runs `forward` in the surroundings of a micro-batch (step context, autocast); empty: just runs it.
  std::function<void(int micro_batch, const std::function<void()>& forward)> around_forward;
};

struct PipelineStatistics {
  double waited_seconds = 0;  ///< In the last step: for other stages.
  double compute_seconds = 0;
  int64_t sent_bytes = 0;  ///< In the last step.
  int most_kept = 0;       ///< Micro-batches (times own stages) whose activations were kept at once, ever.
};

/// One rank's part. One thread.
class COHORT_API PipelineRunner {
 public:
  /// Makes the schedule of a step of N micro-batches; its ranks are those of the group.
  using ScheduleMaker = std::function<Schedule(int num_micro_batches)>;

  /// Collective over `group`. `graph` is the whole model; layers of stages that this rank does not run are dropped from it, and weights
  /// that belong to another rank's stage are no longer among its parameters. Must outlive the runner.
  PipelineRunner(LayerGraph& graph, StageCut cut, ScheduleMaker make_schedule, Group group);
  ~PipelineRunner();
  PipelineRunner(const PipelineRunner&) = delete;

  /// One step's forwards and backwards: gradients add up in `.grad`. Collective. Errors name the stage and micro-batch.
  void step(int num_micro_batches, const PipelineWork& work);
  /// Once before a row of evaluate() calls: collective.
  void begin_evaluation();
  /// Forward alone of micro-batch number `index` (0, 1, ...; it decides which replica computes). Returns the model's output on the ranks of
  /// the last stage, else undefined. `input` is asked for where it is needed. Collective, without gradients.
  at::Tensor evaluate(int64_t index, const std::function<at::Tensor()>& input);

  const StageCut& cut() const;
  /// Stages of this rank, rising.
  const std::vector<int>& own_stages() const;
  bool has_first_stage() const;  ///< Whether it reads the model's input,
  bool has_last_stage() const;   ///< and makes its output.
  /// Whether this rank runs a stage for a micro-batch of a step of N.
  bool runs(int stage, int micro_batch, int num_micro_batches);
  const Schedule& schedule(int num_micro_batches);
  const PipelineStatistics& statistics() const;
  /// From now on step() appends what this rank did and when, transfers and waits included: seconds of the steady clock, which the ranks of
  /// a host share. Null: no longer. `actions` must live until then.
  void record(std::vector<TimedAction>* actions);
  /// The values of tied weights (by their number) pass through this before this rank's stages borrow them; empty: as they are. `verify`
  /// shows so that it finds a wrong one.
  void change_borrowed(std::function<at::Tensor(int64_t number, const at::Tensor& value)> change);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cohort
