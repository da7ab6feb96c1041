#pragma once
// Ranks train the same model with the same weights: at the start, and while they train.

#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/parallel/common/parameters.h"

namespace cohort {

// Ranks check that they train the same model before the first exchange: a mismatch inside a collective would hang or end the process.

/// Collective. Error(kFailed), the same on every rank, that names the ranks in the minority and the first parameter in which they differ.
void check_same_model(Group& group, const std::vector<NamedTensor>& parameters);

/// Error(kBadInput) for a layer that is known to write to its weights in forward, by what its rank reads: ranks would drift apart.
void check_forward_writes(const torch::nn::Module& module, int num_ranks);

/// The same for any text that all ranks must share (a configuration, say); `what` names it, `advice` ends the message.
void check_same_text(Group& group, const std::string& text, const std::string& what, const std::string& advice);

/// The same on every rank that made the step: `num_left` of `num_ranks` could not, and no rank has it. `rank` is the one, where it is one.
[[noreturn]] void fail_left_step(int64_t num_left, int64_t rank, int num_ranks);

// Every rank starts with rank 0's model.

/// Collective: parameters (frozen ones too) and buffers of any type get rank 0's values.
void broadcast_model(const torch::nn::Module& module, Group& group);

// Whether ranks still have the same weights, looked at cheaply: a few elements a step, every one of a model in turn.

/// A number from 0 to 63 that ranks with the same weights share, and others have in common once in 64 steps. One thread.
class WeightCheck {
 public:
  /// Collective. Off (always 0) where ranks compute with other instructions or numbers of threads, so that weights may differ in their last
  /// bits, and for `parameters` on a device, all but once in 64 steps.
  WeightCheck(Group& group, std::vector<NamedTensor> parameters);
  /// Called in the same steps on all ranks.
  int next();

 private:
  std::vector<NamedTensor> parameters_;
  bool is_on_ = true;
  uint64_t num_looks_ = 0;
};

/// "values of hash 123": the same for the same bits.
std::string text_of_values(const at::Tensor& tensor);

/// Collective. Error(kFailed), the same on every rank, that names the first parameter or buffer in which ranks differ by a bit, and the
/// ranks. Reads all values: for checks by hand, and for naming what a cheaper one found. Integer counters and what has no memory here (ZeRO
/// stage 3) are left out.
void assert_same_weights(const torch::nn::Module& module, Group group);

}  // namespace cohort
