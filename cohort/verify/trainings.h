#pragma once
// The trainings that verify compares: one process, one process that does in turn what ranks do side by side, and the ranks themselves. Each
// runs in forked processes, those of one process once for all layouts.

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

/// What a training tells of its stages; empty without a pipeline.
struct StagesOfRun {
  std::vector<LayerStage> layers;
  std::vector<TiedUse> tied;
};

/// Made and used in one thread, the only one of the process. Works in a temporary folder that it removes. Error where a training fails.
class Trainings {
 public:
  Trainings(const Config& config, const DataSet& data);
  ~Trainings();

  /// What every training begins with.
  const Checkpoint& initial();
  /// One process that takes each micro-step of the command, cut into `pieces` more, whole. `nudge`: its initial weights move by this part
  /// of themselves, up and down.
  const Checkpoint& one_process(int pieces = 1, double nudge = 0);
  /// One process that does the arithmetic of `layout`'s ranks in their order (train/step/sequential_ranks.h, pieces.h, pieces.h).
  const Checkpoint& sequential(const Layout& layout, const StagesOfRun& stages, double nudge = 0);
  /// What the weights began with that `nudge` moved; one_process() or sequential() was called with it.
  const Checkpoint& nudged_initial(double nudge) { return initial_.at(nudge); }
  /// describe_modules() of the model; a training by one process was there.
  Json modules() const;
  /// That of all trainings, for what else is kept as long.
  const std::string& folder() const;
  /// The ranks, anew at each call.
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

// How much does a training amplify rounding? Its initial weights move a little.

/// Every third weight goes up by `unit` of itself, the others down.
void nudge_weights(torch::nn::Module& model, double unit);

}  // namespace cohort
