#pragma once
// One training step on one rank: forward and backward of its micro-batches, the exchange of gradients, the update.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "cohort/base/text/json_fwd.h"
#include "cohort/data/loader.h"
#include "cohort/job/job.h"
#include "cohort/models/graph/step_context.h"
#include "cohort/parallel/strategy/strategy.h"
#include "cohort/pipeline/model_part.h"
#include "cohort/record/step_records.h"
#include "cohort/train/distil/teacher.h"
#include "cohort/train/model/batch_tensors.h"
#include "cohort/train/model/precision.h"
#include "cohort/train/model/pruner.h"
#include "cohort/train/step/forward_backward.h"
#include "cohort/train/step/loss_scaler.h"
#include "cohort/train/step/noise_meter.h"
#include "cohort/train/step/sequential_ranks.h"
#include "cohort/train/step/step_trace.h"

namespace cohort {

class LayerGraph;

struct TrainingStepOptions {
  int64_t total_steps = 0;  ///< Steps of the run, for learning-rate schedules.
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  double slow_factor = 1;       ///< Injected fault: this rank computes that many times longer.
  int microbatches = 1;         ///< Micro-batches of a pipeline per micro-step (times replicas, if stages have their own numbers of them).
  bool empty_forward = false;   ///< A rank without samples still runs forward, because its layers exchange (batch norm over ranks).
  NoiseMeter* noise = nullptr;  ///< Null unless the noise scale is measured.
  Pruner* pruner = nullptr;     ///< Null unless weights are pruned.
  StepTrace* trace = nullptr;   ///< Null unless steps are traced.
  SequentialRanks* sequential =
      nullptr;  ///< Not null: this process runs the micro-batches of all ranks, which the batch holds in rank order.
  /// Replaces the loss of the model; empty: the model's.
  std::function<at::Tensor(const at::Tensor& logits, const at::Tensor& target)> loss = {};
  const TeacherAnswers* teacher = nullptr;  ///< Not null: adds its distillation loss.
};

struct StepResult {
  StepRecord metrics;
  bool stop = false;     ///< Some rank requested a stop.
  bool skipped = false;  ///< fp16: a gradient was infinite or NaN, and no rank applied its update.
  std::optional<NoiseRecord> noise;
  /// `metrics` are the mean of this many steps, those since the last exchange. 0: no exchange followed this step, so ranks have not agreed
  /// on anything and the result is not valid.
  int64_t num_steps = 1;
  int64_t num_samples = 0;  ///< Samples of this rank in those steps.
};

/// One thread. References must outlive it.
class TrainingStep {
 public:
  /// `part` describes this rank's part of the model; `strategy` exchanges over its data() group.
  TrainingStep(const Job& job, const DataShape& shape, LayerGraph& model, Strategy& strategy, ModelPart& part, TrainingStepOptions options);
  virtual ~TrainingStep() = default;
  TrainingStep(const TrainingStep&) = delete;

  /// Collective; with local steps over the ranks of one replica, and over all ranks in steps that an exchange follows. `number` counts from
  /// 0. Error(kFailed) when the loss is not finite.
  StepResult run(int64_t number, LoadedBatch& batch);

  /// Error(kFailed) for a loss that is not finite, with advice and the first tensor that is not. `which`: "the loss"; `batch`: its samples,
  /// null where they are gone.
  void check_finite(const std::string& which, double loss, int64_t number, LoadedBatch* batch = nullptr) const;

  /// Since the start of the run, before resumes too.
  int64_t skipped_steps() const { return scaler_.skipped_steps(); }

  /// The loss scale, for checkpoints.
  Json state() const;
  void load(const Json& state);

 protected:
  // Numbers of a step that verify overrides, to show that it detects wrong ones.

  /// The loss of a micro-batch is multiplied by it before backward(). `is_last`: the last one of its replica.
  virtual double loss_factor(bool is_last) const;
  virtual StepContext context_of(const Share& piece, int64_t number) const;
  virtual double effective_learning_rate(int64_t number) const;

 private:
  StepResult run_step(int64_t number, LoadedBatch& batch);
  void run_pieces(LoadedBatch& batch);
  void run_pipeline(LoadedBatch& batch);
  void run_sequentially(LoadedBatch& batch);
  /// The scaled loss, from which backward() starts.
  at::Tensor start_of_backward(const at::Tensor& loss, bool is_last) const;
  struct Rows {
    SampleRows of_batch;
    std::span<const int64_t> samples;  ///< Their indices in the data.
    at::Tensor answers;                ///< The scores of a teacher that worked in the loader; else undefined.
  };
  Rows rows_of(const BatchTensors& whole, LoadedBatch& loaded, const Share& piece, int64_t offset) const;
  /// How the loss of `rows` is computed, which must outlive the result.
  LossRules rules_for(const Rows& rows) const;
  int64_t samples_of_update(const LoadedBatch& batch) const;
  bool exchanges_after(int64_t number) const { return (number + 1) % steps_between_exchanges_ == 0; }
  void agree(StepResult& out, const LoadedBatch& batch, int64_t number);
  void report_round(StepResult& out, int64_t number);

  const Job& job_;
  const Config& config_;
  const DataShape& shape_;
  LayerGraph& model_;
  Strategy& strategy_;
  ModelPart& part_;
  TrainingStepOptions options_;
  LossScaler scaler_;
  int64_t steps_between_exchanges_ = 1;
  std::optional<LocalRound> round_;     // With local steps.
  double pipeline_waited_seconds_ = 0;  // For other stages in this step.
};

}  // namespace cohort
