#pragma once
// What the command line and `verify` ask of a training besides its configuration.

#include <ATen/core/Tensor.h>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "cohort/job/layout.h"
#include "cohort/job/resumed_config.h"
#include "cohort/train/run_forecast.h"
#include "cohort/train/step/in_turn.h"

namespace cohort {

class LayerGraph;
class ModelPart;
class Strategy;
class TrainingStep;
struct DataShape;
struct Job;
struct TrainingStepOptions;

/// What else changes where a model is changed before it is trained.
struct AlteredModel {
  /// In place of the loss of the model; empty: that.
  std::function<at::Tensor(const at::Tensor& logits, const at::Tensor& target)> loss;
  std::vector<BorrowedWeight> borrowed;
  BackwardOrder order;  ///< Of InTurn.
};

using StepMaker =
    std::function<std::unique_ptr<TrainingStep>(const Job&, const DataShape&, LayerGraph&, Strategy&, ModelPart&, TrainingStepOptions)>;

struct TrainOptions {
  bool reports = true;                 ///< false: no metrics, evaluation, progress or report; the run folder gets checkpoints only.
  bool folder_is_held = false;         ///< The caller has the RunFolder of config.run for the time of the job.
  std::vector<SettingChange> changes;  ///< Of a run that goes on: what is said and recorded once it does.
  ForecastSource forecast;             ///< What the run is held against; its plan becomes the run's plan.json.
  int num_served = 0;                  ///< Workers that this one rank of the run serves (async/served/); 0: all ranks make it together.
  bool keep_first = false;             ///< A checkpoint before the first step too.
  /// This one process does in turn what the ranks of this layout do side by side (in_turn.h).
  std::optional<Layout> in_turn = {};
  /// Called with the model, to change how it computes.
  std::function<AlteredModel(LayerGraph&)> alter_model = {};
  bool shares_batch_norm = true;                                 ///< As those of ParallelizeOptions,
  std::function<void(LayerGraph&, ModelPart&)> alter_part = {};  ///< which says when it is called.
  StepMaker make_step = {};                                      ///< In place of TrainingStep; empty: that.
};

}  // namespace cohort
