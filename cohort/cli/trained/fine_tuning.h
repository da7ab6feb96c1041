#pragma once
// The training inside `cohort compress prune` and `cohort compress quantize --scheme qat`.

#include <string>
#include <vector>

#include "cohort/cli/options/verb.h"
#include "cohort/compress/fine_tuning.h"

namespace cohort {

/// Settings that say how it trains; what they are where they were not given is the run's.
std::vector<std::string> fine_tuning_settings();
/// What of them was given. Error(kBadInput) under a launcher.
FineTuningRequest fine_tuning_request(const Arguments& arguments, const std::string& verb);
/// A line where the run was trained otherwise than the fine-tuning can be.
void say_what_is_left_out(const TrainedFile& file);
/// Trains what `state` says is to be trained. Returns the training's exit code, and 0 only where its last step is done.
int run_fine_tuning(const Config& config, FineTuningState state, const std::string& verb);

}  // namespace cohort
