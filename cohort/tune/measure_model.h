#pragma once
// Measures a model on this machine: the profile and the clusters that a plan is made from.

#include <string>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/data/source/source.h"
#include "cohort/job/config.h"
#include "cohort/plan/profile/model_profile.h"

namespace cohort {

struct MeasureModelOptions {
  std::vector<std::string> precisions = {"fp32"};
  std::vector<int> workers = {1};  ///< Numbers of concurrent ranks, measured one number at a time; a rank has its share of the cores.
  bool times_compression = false;  ///< Also time compression of the model's gradients, for plans that may compress.
  bool shows_progress = false;     ///< A line on stderr that is redrawn.
};

/// Forks ranks for each number of workers. Every layer is measured at a few micro-batch sizes up to the global batch, on the first samples
/// of the training data; `measured_on` gets a cluster for each number. A warning where other programs were busy meanwhile. The calling
/// process must have one thread and not have computed. Error with the code of the rank that failed first and no text: its message is on
/// stderr.
ModelProfile measure_model(const Config& config, const DataSet& data, const MeasureModelOptions& options);

/// measure_model() by the existing ranks of a job, for their number only. Collective; rank 0 gets the profile, the others one without
/// points.
ModelProfile measure_model_together(const Config& config, const DataSet& data, const MeasureModelOptions& options, Group& group);

}  // namespace cohort
