#pragma once
// Options of a training that are not part of its configuration: for the command line, verify and auto-tuning.

#include <ATen/core/Tensor.h>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "cohort/job/layout.h"
#include "cohort/job/resumed_config.h"
#include "cohort/train/run_forecast.h"
#include "cohort/train/step/sequential_ranks.h"

namespace cohort {

class LayerGraph;
class ModelPart;
class Strategy;
class TrainingStep;
struct Job;
struct TrainingStepOptions;

/// What TrainOptions::alter_model changes besides the layers.
struct AlteredModel {
  /// Replaces the loss of the model; empty: the model's.
  std::function<at::Tensor(const at::Tensor& logits, const at::Tensor& target)> loss;
  std::vector<BorrowedWeight> borrowed;
  BackwardOrder order;  ///< For SequentialRanks.
};

using StepMaker =
    std::function<std::unique_ptr<TrainingStep>(const Job&, const DataShape&, LayerGraph&, Strategy&, ModelPart&, TrainingStepOptions)>;

struct TrainOptions {
  bool reports = true;                 ///< false: no metrics, evaluation, progress or report, only checkpoints.
  bool folder_is_held = false;         ///< The caller holds the RunFolder of config.run.
  std::vector<SettingChange> changes;  ///< Changed settings of a resumed run, logged and recorded at its start.
  ForecastSource forecast;             ///< Compared with the measured step; its plan is written to plan.json.
  int num_served = 0;                  ///< Workers that this rank serves (async/served/); 0: synchronous ranks.
  bool keep_first = false;             ///< Also save a checkpoint before the first step.
  /// This process runs the ranks of this layout sequentially (sequential_ranks.h).
  std::optional<Layout> sequential = {};
  /// Called with the whole model, to change how it computes.
  std::function<AlteredModel(LayerGraph&)> alter_model = {};
  bool shares_batch_norm = true;                                 ///< See ParallelizeOptions.
  std::function<void(LayerGraph&, ModelPart&)> alter_part = {};  ///< See ParallelizeOptions.
  StepMaker make_step = {};                                      ///< Replaces TrainingStep; empty: TrainingStep.
};

}  // namespace cohort
