#pragma once
// The trainings that verify compares: by one process, by one process that runs the ranks sequentially, and by the ranks. Each runs in
// forked processes; those by one process are shared by all layouts.

#include <torch/nn/module.h>

#include <map>
#include <string>
#include <vector>

#include "cohort/base/files/file.h"
#include "cohort/base/text/json_fwd.h"
#include "cohort/checkpoint/checkpoint.h"
#include "cohort/data/source/source.h"
#include "cohort/job/job.h"
#include "cohort/verify/faults.h"
#include "cohort/verify/pieces.h"

namespace cohort {

/// The stages of a training; empty without a pipeline.
struct StagesOfRun {
  std::vector<LayerStage> layers;
  std::vector<TiedUse> tied;
};

/// For a process with one thread. Uses a temporary folder, which it removes. Error if a training fails.
class Trainings {
 public:
  Trainings(const Config& config, const DataSet& data);
  ~Trainings();

  /// The initial state of every training.
  const Checkpoint& initial();
  /// Training by one process, with each micro-step divided into `pieces`. `nudge`: a relative change of the initial weights.
  const Checkpoint& one_process(int pieces = 1, double nudge = 0);
  /// One process that does the arithmetic of `layout`'s ranks in their order (train/step/sequential_ranks.h, pieces.h).
  const Checkpoint& sequential(const Layout& layout, const StagesOfRun& stages, double nudge = 0);
  /// The initial weights moved by `nudge`, after a call of one_process() or sequential() with it.
  const Checkpoint& nudged_initial(double nudge) { return initial_.at(nudge); }
  /// describe_modules() of the model, after a training by one process.
  Json modules() const;
  /// The temporary folder.
  const std::string& folder() const;
  /// Training by the ranks, run at each call.
  Checkpoint ranks(const Layout& layout, Fault fault = Fault::kNone);

 private:
  struct Variant;
  const Checkpoint& known(const std::string& key, const Variant& variant);
  std::string modules_path() const;
  std::string run(Job job, const Variant& variant);

  TemporaryFolder folder_{"cohort-verify"};
  Config config_;
  const DataSet& data_;
  std::map<std::string, Checkpoint> one_process_;
  std::map<double, Checkpoint> initial_;  // By nudge.
  int num_runs_ = 0;
};

/// Multiplies every third weight by 1 + `unit` and the others by 1 - `unit`, to measure how a training amplifies rounding.
void nudge_weights(torch::nn::Module& model, double unit);

}  // namespace cohort
