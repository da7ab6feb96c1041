#pragma once
// Whether ranks still have the same weights, looked at cheaply: a few elements a step, every one of a model in turn.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/parallel/common/parameters.h"

namespace cohort {

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
