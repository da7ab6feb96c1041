#pragma once
// Does training several trials at once pay here? Measured, for it depends on the model, the batch and the machine. No LibTorch.

#include <cstdint>

#include "cohort/study/spec.h"

namespace cohort {

struct TrialData;

/// Processor seconds for one step of one trial.
struct FusionProbe {
  int64_t num_trials = 0;  ///< Fused at once.
  double fused_seconds = 0, unfused_seconds = 0;
  bool pays() const { return fused_seconds < unfused_seconds; }
};

/// Measures both ways here and now, in turn (medians; a part of a second). A model that can not be fused (fused_trials.h) has infinite
/// fused_seconds.
FusionProbe probe_fusion(const study::StudySpec& spec, const TrialData& data, int64_t batch_size, int64_t num_trials = 8);

}  // namespace cohort
