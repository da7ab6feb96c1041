#pragma once
// Checks that ranks train the same model with the same weights, at the start and while they train.

#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/parallel/common/parameters.h"

namespace cohort {

/// Collective; before the first exchange, where a mismatch would hang or end the process. Error(kFailed), the same on every rank, names the
/// ranks in the minority and the first parameter that differs.
void check_same_model(Group& group, const std::vector<NamedTensor>& parameters);

/// Error(kBadInput) for a layer that writes to its weights in forward depending on its input: ranks would drift apart.
void check_forward_writes(const torch::nn::Module& module, int num_ranks);

/// The same check for any text; `what` names it, `advice` ends the message.
void check_same_text(Group& group, const std::string& text, const std::string& what, const std::string& advice);

/// Error, the same on every rank that made the step: `num_left` of `num_ranks` could not. `rank` is the one, where it is only one.
[[noreturn]] void fail_left_step(int64_t num_left, int64_t rank, int num_ranks);

/// Collective: parameters (frozen ones too) and buffers of any type get rank 0's values.
void broadcast_model(const torch::nn::Module& module, Group& group);

// Cheap check that ranks still have the same weights: hashes a few elements per step, different ones in each.

/// Yields a number from 0 to 63 that is equal on ranks with the same weights, and by chance once in 64 steps on others. One thread.
class WeightCheck {
 public:
  /// Collective. Off (always 0) where ranks compute with different instructions or numbers of threads, so that weights may differ in their
  /// last bits. For `parameters` on a device, on once in 64 steps.
  WeightCheck(Group& group, std::vector<NamedTensor> parameters);
  /// Call in the same steps on all ranks.
  int next();

 private:
  std::vector<NamedTensor> parameters_;
  bool is_on_ = true;
  uint64_t num_looks_ = 0;
};

/// "values of hash 123": equal for equal bits.
std::string text_of_values(const at::Tensor& tensor);

/// Collective. Error(kFailed), the same on every rank, names the first parameter or buffer that differs by a bit, and the ranks. Reads all
/// values, so it is for explicit checks and for naming what a cheaper one found. Skips integer counters and tensors without memory here
/// (ZeRO stage 3).
void assert_same_weights(const torch::nn::Module& module, Group group);

}  // namespace cohort
