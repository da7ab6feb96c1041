#pragma once
// The state of a running trial on disk: a safetensors file that is replaced as a whole.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/study/spec/data.h"
#include "cohort/trials/trial_weights.h"

namespace cohort {

struct NamedTensor;

/// What a trial has besides its weights and buffers.
struct TrialProgress {
  int64_t step = 0;    ///< Updates done.
  double seconds = 0;  ///< That it took so far, of all workers together; 0 in files of versions that did not keep it.
  std::vector<study::Measurement> measurements;
};

/// `trial` says which trial this is: what decides its result, as one line of text. Error(kFailed) when the file cannot be written.
void save_trial_snapshot(const std::string& path, const std::string& trial, const TrialProgress& progress, const TrialWeights& weights,
                         const std::vector<NamedTensor>& buffers);

/// Fills weights, optimizer state, counts and buffers (of the same model and optimizer) and `progress`, and returns true; or changes
/// nothing and returns false where there is no file. A file that is damaged, or another trial's: false, and a warning that names it.
bool load_trial_snapshot(const std::string& path, const std::string& trial, TrialProgress& progress, TrialWeights& weights,
                         const std::vector<NamedTensor>& buffers);

}  // namespace cohort
