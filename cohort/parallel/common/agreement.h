#pragma once
// Ranks check that they train the same model before the first exchange: a mismatch inside a collective would hang or end the process.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/parallel/common/parameters.h"

namespace cohort {

/// Collective. Error(kFailed), the same on every rank, that names the ranks in the minority and the first parameter in which they differ.
void check_same_model(Group& group, const std::vector<NamedTensor>& parameters);

/// Error(kBadInput) for a layer that is known to write to its weights in forward, by what its rank reads: ranks would drift apart.
void check_forward_writes(const torch::nn::Module& module, int num_ranks);

/// The same for any text that all ranks must share (a configuration, say); `what` names it, `advice` ends the message.
void check_same_text(Group& group, const std::string& text, const std::string& what, const std::string& advice);

/// The same on every rank that made the step: `num_left` of `num_ranks` could not, and no rank has it. `rank` is the one, where it is one.
[[noreturn]] void fail_left_step(int64_t num_left, int64_t rank, int num_ranks);

}  // namespace cohort
