#pragma once
// The profiles that Sailor publishes, as measured runs (sailor_runs.cpp; docs/formats/measured_steps.md). Torch-free.

#include <string>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/plan/forecast/public_runs.h"

namespace cohort {

/// Of one model and tensor degree: weights and activations of a rank's Transformer layers, one sequence, nothing recomputed.
struct MeasuredMemory {
  std::string model;
  int tp = 1;
  double predicted_bytes = 0, measured_bytes = 0;
};

/// `folder` has training_*.json, profiles/MODEL/GPU.json and, for the second, layer_memory.json. A run is a micro-batch forward and
/// backward and an update, on one tensor-parallel group. Error(kBadInput) with file and place.
std::vector<PublicRun> read_sailor_runs(const std::string& folder);
COHORT_PROGRAM_API std::vector<MeasuredMemory> forecast_sailor_memory(const std::string& folder);

}  // namespace cohort
