#pragma once
// One training run on one rank of the job.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cohort/data/source.h"
#include "cohort/job/fault.h"
#include "cohort/job/job.h"
#include "cohort/job/resumed_config.h"
#include "cohort/models/layer_graph.h"
#include "cohort/train/in_turn.h"
#include "cohort/world/world.h"

namespace cohort {

struct TrainResult {
  int64_t steps = 0;  ///< Completed, those before a resume included.
  double loss = 0;    ///< Of the last step.
  double val_loss = 0, val_error = 0;
  double seconds = 0;
  double step_seconds = 0;  ///< Median.
  bool interrupted = false;
};

/// What else changes where a model is changed before it is trained.
struct AlteredModel {
  /// In place of the loss of the model; empty: that.
  std::function<at::Tensor(const at::Tensor& logits, const at::Tensor& target)> loss;
  std::vector<BorrowedWeight> borrowed;
  BackwardOrder order;  ///< Of InTurn.
};

struct TrainOptions {
  bool reports = true;                 ///< false: no metrics, evaluation, progress or report; the run folder gets checkpoints only.
  bool folder_is_held = false;         ///< The caller has the RunFolder of config.run for the time of the job.
  std::vector<SettingChange> changes;  ///< Of a run that goes on: what is said and recorded once it does.
  bool keep_first = false;             ///< A checkpoint before the first step too.
  Fault fault = Fault::kNone;          ///< Put in on purpose, on the ranks that it is about.
  /// This one process does in turn what the ranks of this layout do side by side (in_turn.h).
  std::optional<Layout> in_turn = {};
  /// Called with the model, to change how it computes.
  std::function<AlteredModel(LayerGraph&)> alter_model = {};
};

/// Trains as `job` says, into runs/MODEL-YYYYMMDD-HHMMSS where config.run is empty; every rank calls it with the same job
/// and data. Rank 0 writes the run folder and, with config.json, the lines of stdout. Error: kFailed when the loss is not
/// finite or a checkpoint cannot be saved, kEnvironment when a peer is lost, kBadInput when the folder holds another run or is another
/// job's.
TrainResult train(const Job& job, const DataSet& data, const World& world, const TrainOptions& options = {});
/// resolve()s it for the ranks of `world`.
TrainResult train(const Config& config, const DataSet& data, const World& world, const TrainOptions& options = {});

}  // namespace cohort
